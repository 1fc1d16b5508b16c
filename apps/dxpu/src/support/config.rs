//! Configuration files of the roles: `--config FILE` and `--print-config`.
//!
//! ```text
//!   command line ─┐
//!   environment ──┼─▶ clap ─▶ role          a key of the file becomes the option of its name, unless the command line or
//!   FILE ─────────┘                         the environment says the same
//! ```
//!
//! Keys, types and checks are those of clap's own definition: there is no second list of settings.

mod file;
mod print;

use crate::support::exit::{Exit, Failure};
use anyhow::Context;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The commands that serve until they are stopped.
const ROLES: [&str; 5] = ["manager", "box", "host", "worker", "functions"];

const CONFIG: &str = "config";
const PRINT: &str = "print-config";
const HEADING: &str = "Configuration";

/// What to do.
#[derive(Debug)]
pub(crate) enum Settled {
    /// Print this, and end.
    Show(String),
    /// Go on with these settings.
    Run(ArgMatches),
}

/// Adds the options to the roles' commands.
pub(crate) fn with_options(dxpu: clap::Command) -> clap::Command {
    let config = Arg::new(CONFIG)
        .long(CONFIG)
        .value_name("FILE")
        .value_parser(clap::value_parser!(PathBuf))
        .help_heading(HEADING)
        .help(
            "Take settings from this TOML file; its keys are these options without their dashes. An option on the \
             command line counts first, then the environment, then the file",
        );
    let print = Arg::new(PRINT)
        .long(PRINT)
        .action(ArgAction::SetTrue)
        .help_heading(HEADING)
        .help("Print the settings that this command would use, as such a file with comments, and end");
    let add = |command: clap::Command| command.arg(config.clone()).arg(print.clone());
    ROLES.into_iter().fold(dxpu, |dxpu, role| dxpu.mut_subcommand(role, add))
}

/// Reads the command line, and the file that it names. Ends the process when clap has something to say to the user.
pub(crate) fn settle(dxpu: &clap::Command, words: Vec<OsString>) -> anyhow::Result<Settled> {
    try_settle(dxpu, words)?.map_err(Told::exit_process)
}

/// What clap says, and where settings came from that are not on the command line.
#[derive(Debug)]
struct Told {
    error: Box<clap::Error>,
    note: String,
}

impl Told {
    fn exit_process(self) -> anyhow::Error {
        if !self.note.is_empty() {
            crate::support::log::say(format_args!("{}", self.note));
        }
        self.error.exit()
    }
}

fn try_settle(dxpu: &clap::Command, words: Vec<OsString>) -> anyhow::Result<Result<Settled, Told>> {
    let plain = |words: Vec<OsString>, note: String| {
        let matches = dxpu.clone().try_get_matches_from(words);
        matches.map(Settled::Run).map_err(|error| Told { error: Box::new(error), note })
    };
    // With what a file may say still missing, nothing is required yet.
    let Ok(found) = lenient(dxpu.clone()).try_get_matches_from(&words) else {
        return Ok(plain(words, String::new()));
    };
    let Some((role, given)) = found.subcommand() else { return Ok(plain(words, String::new())) };
    if !ROLES.contains(&role) || given.subcommand().is_some() {
        return Ok(plain(words, String::new()));
    }
    let path = given.get_one::<PathBuf>(CONFIG).cloned();
    let is_shown = given.get_flag(PRINT);
    if path.is_none() && !is_shown {
        return Ok(plain(words, String::new()));
    }
    let definition = dxpu.find_subcommand(role).context("a role is a command")?;
    let mut all = words;
    let mut taken = Vec::new();
    if let Some(path) = &path {
        // The command line is `dxpu ROLE …`: what the file says comes first.
        const AFTER_THE_ROLE: usize = 2;
        for setting in read(path, definition)? {
            let source = given.value_source(&setting.id);
            if !matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable)) {
                all.splice(AFTER_THE_ROLE..AFTER_THE_ROLE, setting.words());
                taken.push(setting.id);
            }
        }
    }
    let note = match &path {
        Some(path) if !taken.is_empty() => {
            format!("dxpu: {} sets {}", path.display(), taken.join(", ").replace('_', "-"))
        }
        _ => String::new(),
    };
    if is_shown {
        let matches = lenient(dxpu.clone()).try_get_matches_from(all);
        return Ok(match matches {
            Ok(matches) => {
                let matches = matches.subcommand_matches(role).context("the same words, the same role")?;
                Ok(Settled::Show(print::effective(definition, matches)))
            }
            Err(error) => Err(Told { error: Box::new(error), note }),
        });
    }
    let dxpu = dxpu.clone().mut_subcommand(role, |role| role.mut_args(switchable));
    let matches = dxpu.try_get_matches_from(all);
    Ok(matches.map(Settled::Run).map_err(|error| Told { error: Box::new(error), note }))
}

fn read(path: &Path, role: &clap::Command) -> anyhow::Result<Vec<file::Setting>> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let what = format!("cannot read the configuration {}", path.display());
        Failure::new(Exit::Usage, what, "check the path behind --config, and who may read the file")
            .because(error)
    })?;
    file::settings(&text, role).map_err(|wrong| {
        let what =
            format!("{} is no configuration of `dxpu {}`: {}", path.display(), role.get_name(), wrong.what);
        Failure::new(Exit::Usage, what, wrong.hint).into()
    })
}

/// The options that a file may set.
fn options(role: &clap::Command) -> impl Iterator<Item = &Arg> {
    let is_ours = |id: &str| [CONFIG, PRINT, "help", "version"].contains(&id);
    role.get_arguments().filter(move |arg| !is_ours(arg.get_id().as_str()) && !arg.is_hide_set())
}

/// For a look at what is given: nothing is required, and switches may be turned off.
fn lenient(dxpu: clap::Command) -> clap::Command {
    let loosen = |role: clap::Command| role.mut_args(|arg| switchable(arg.required(false)));
    ROLES.into_iter().fold(dxpu, |dxpu, role| dxpu.mut_subcommand(role, loosen))
}

/// Lets the command line turn a switch off that the file turns on: `--msix=false`.
fn switchable(arg: Arg) -> Arg {
    if !matches!(arg.get_action(), ArgAction::SetTrue) {
        return arg;
    }
    arg.action(ArgAction::Set)
        .value_parser(clap::value_parser!(bool))
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("true")
        .default_value("false")
}

#[cfg(test)]
mod tests;
