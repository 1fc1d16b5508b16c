//! `--print-config`: the settings that count, as a configuration file.
//!
//! A line behind `#` shows a default: as a line of its own it would count as said, and some options may only be said
//! together with others.

use super::options;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};

/// Comments end here.
const WIDTH: usize = 100;

/// The file, with every setting of the role in it.
pub(super) fn effective(role: &clap::Command, matches: &ArgMatches) -> String {
    let name = role.get_name();
    let head = format!(
        "Settings of `dxpu {name}`. A line behind # shows a default, or a setting that is not made. An option on the \
         command line counts more than the environment, and the environment more than this file."
    );
    let mut text = comment(&head);
    for arg in options(role) {
        text.push('\n');
        text.push_str(&entry(arg, matches));
    }
    text
}

fn entry(arg: &Arg, matches: &ArgMatches) -> String {
    let key = arg.get_long().unwrap_or(arg.get_id().as_str());
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut text = comment(&help);
    let possible: Vec<String> = match arg.get_action() {
        ArgAction::SetTrue => Vec::new(),
        _ => arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect(),
    };
    if !possible.is_empty() {
        text += &comment(&format!("One of: {}", possible.join(", ")));
    }
    if let Some(variable) = arg.get_env() {
        text += &comment(&format!("Environment variable: {}", variable.display()));
    }
    let source = matches.value_source(arg.get_id().as_str());
    let raw = matches.get_raw(arg.get_id().as_str());
    let values: Vec<String> =
        raw.into_iter().flatten().map(|value| value.to_string_lossy().into_owned()).collect();
    let is_said = matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable));
    let value = match arg.get_action() {
        ArgAction::SetTrue => values.first().map_or("false", String::as_str).to_owned(),
        ArgAction::Append => {
            // An environment variable has them in one text.
            let split = |value: &String| match arg.get_value_delimiter() {
                Some(delimiter) => value.split(delimiter).map(str::to_owned).collect(),
                None => vec![value.clone()],
            };
            let each: Vec<String> = values.iter().flat_map(split).map(|value| quoted(&value)).collect();
            format!("[{}]", each.join(", "))
        }
        _ => values.first().map_or_else(|| "\"\"".to_owned(), |value| quoted(value)),
    };
    let mark = if is_said { "" } else { "# " };
    text + &format!("{mark}{key} = {value}\n")
}

/// As TOML has it: a number, or a text in quotes.
fn quoted(value: &str) -> String {
    match value.parse::<u32>() {
        Ok(number) if number.to_string() == value => value.to_owned(),
        // JSON writes a text as TOML does.
        _ => serde_json::Value::from(without_passwords(value)).to_string(),
    }
}

/// Options name files with secrets, never secrets; only an address can hold one.
fn without_passwords(text: &str) -> String {
    let mut parts = text.split("://");
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        clean.push_str("://");
        let authority_ends = part.find(['/', ',']).unwrap_or(part.len());
        match part[..authority_ends].rsplit_once('@') {
            Some((user, host)) => {
                let user = user.split(':').next().unwrap_or_default();
                clean.push_str(&format!("{user}:(hidden)@{host}{}", &part[authority_ends..]));
            }
            None => clean.push_str(part),
        }
    }
    clean
}

fn comment(text: &str) -> String {
    let mut lines = String::new();
    let mut line = String::from("#");
    for word in text.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH && line.len() > 1 {
            lines += &line;
            lines.push('\n');
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    if line.len() > 1 {
        lines += &line;
        lines.push('\n');
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_an_address_is_hidden() {
        assert_eq!(
            without_passwords("etcd:http://e1:2379,http://e2:2379"),
            "etcd:http://e1:2379,http://e2:2379"
        );
        assert_eq!(
            without_passwords("etcd:http://root:s3c@ret@e1:2379,http://root:other@e2:2379/x@y"),
            "etcd:http://root:(hidden)@e1:2379,http://root:(hidden)@e2:2379/x@y"
        );
    }

    #[test]
    fn comments_are_wrapped() {
        let text = comment(&"word ".repeat(40));
        assert!(text.lines().all(|line| line.len() <= WIDTH && line.starts_with("# word")), "{text}");
        assert_eq!(comment(""), "");
    }
}
