//! A configuration file, as settings of a role.

use super::options;
use clap::{Arg, ArgAction};
use std::ffi::OsString;

/// One key of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// What clap calls the option.
    pub(super) id: String,
    option: String,
    value: Value,
}

#[derive(Debug, PartialEq, Eq)]
enum Value {
    Switch(bool),
    Texts(Vec<String>),
}

/// Why a file is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) what: String,
    pub(super) hint: String,
}

impl Setting {
    /// The option, as the command line would have it.
    pub(super) fn words(&self) -> Vec<OsString> {
        let word = |value: &String| OsString::from(format!("--{}={value}", self.option));
        match &self.value {
            Value::Switch(true) => vec![format!("--{}=true", self.option).into()],
            Value::Switch(false) => Vec::new(),
            Value::Texts(texts) => texts.iter().map(word).collect(),
        }
    }
}

/// The settings of this file, each checked to be one of the role's.
pub(super) fn settings(text: &str, role: &clap::Command) -> Result<Vec<Setting>, Wrong> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| Wrong {
        what: error.to_string().trim().to_owned(),
        hint: "write it as TOML: lines such as name = \"rack1-a\"".to_owned(),
    })?;
    table.into_iter().map(|(key, value)| setting(key, value, role)).collect()
}

fn setting(key: String, value: toml::Value, role: &clap::Command) -> Result<Setting, Wrong> {
    let Some(arg) = options(role).find(|arg| arg.get_long() == Some(&key)) else {
        return Err(Wrong { what: format!("there is no setting named {key}"), hint: nearest(&key, role) });
    };
    let value = match arg.get_action() {
        ArgAction::SetTrue => switch(&key, &value)?,
        ArgAction::Append => Value::Texts(many(&key, value)?),
        _ => Value::Texts(vec![one(&key, &value)?]),
    };
    Ok(Setting { id: arg.get_id().to_string(), option: key, value })
}

fn switch(key: &str, value: &toml::Value) -> Result<Value, Wrong> {
    value.as_bool().map(Value::Switch).ok_or_else(|| Wrong {
        what: format!("{key} is a switch: it is true or false, and no {}", value.type_str()),
        hint: format!("write {key} = true"),
    })
}

fn many(key: &str, value: toml::Value) -> Result<Vec<String>, Wrong> {
    match value {
        toml::Value::Array(values) => values.iter().map(|value| one(key, value)).collect(),
        value => Ok(vec![one(key, &value)?]),
    }
}

fn one(key: &str, value: &toml::Value) -> Result<String, Wrong> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        // 9.10 and 9.1 would be the same number.
        toml::Value::Float(number) => Err(Wrong {
            what: format!("the value of {key} is not a whole number"),
            hint: format!("write it in quotes: {key} = \"{number:?}\""),
        }),
        other => Err(Wrong {
            what: format!("the value of {key} is of type {}", other.type_str()),
            hint: format!("write a text in quotes or a whole number: {key} = \"...\""),
        }),
    }
}

/// What was probably meant.
fn nearest(key: &str, role: &clap::Command) -> String {
    let spelt = key.replace('_', "-").to_lowercase();
    let longs: Vec<&str> = options(role).filter_map(Arg::get_long).collect();
    let distance = |long: &&&str| strsim::damerau_levenshtein(&spelt, long);
    match longs.iter().min_by_key(distance) {
        // With more letters changed than kept, it is another word.
        Some(long) if distance(&long) * 2 <= long.len() => format!("did you mean {long}?"),
        _ => format!("`dxpu {} --print-config` prints all settings", role.get_name()),
    }
}
