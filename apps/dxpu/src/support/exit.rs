//! How `dxpu` ends: every failure says what happened, why, and what to do next.

use crate::support::log;
use machine::files::FileError;
use pool_agent::AgentError;
use pool_client::ClientError;
use std::ffi::OsStr;
use std::process::ExitCode;

/// The exit codes of `dxpu` itself. `dxpu run` that starts its program ends as that program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It did what it was asked.
    Success,
    /// It failed in a way that has no code of its own.
    Failure,
    /// The arguments do not make sense (clap uses this one too).
    Usage,
    /// This build or this machine cannot do it.
    Unsupported,
    /// The worker or the manager cannot be reached.
    Unreachable,
    /// The worker or the manager is there but refuses, or is not the one that was meant.
    Refused,
    /// The program cannot be started, as shells say it.
    NotExecutable,
    /// There is no such program, as shells say it.
    NotFound,
    /// A program was started and ended so.
    Program(u8),
}

impl Exit {
    /// The number.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::Unsupported => 3,
            Self::Unreachable => 64,
            Self::Refused => 65,
            Self::NotExecutable => 126,
            Self::NotFound => 127,
            Self::Program(code) => code,
        }
    }

    /// How a command ends that managers do not serve.
    pub(crate) fn of_client(error: &ClientError) -> Self {
        match error {
            ClientError::Refused(_) | ClientError::Certificate { .. } => Self::Refused,
            ClientError::Unreachable { .. } => Self::Unreachable,
            ClientError::Answer(_) => Self::Failure,
            ClientError::Settings(_) => Self::Usage,
        }
    }

    fn of_agent(error: &AgentError) -> Self {
        match error {
            AgentError::NoMember { .. }
            | AgentError::NoAuthority
            | AgentError::NoAddress { .. }
            | AgentError::GuestMemory { .. }
            | AgentError::TooManyParts { .. }
            | AgentError::PartMemory { .. }
            | AgentError::NoSlot { .. } => Self::Usage,
            AgentError::JoinRefused { .. } | AgentError::Replaced { .. } | AgentError::Revoked { .. } => {
                Self::Refused
            }
            AgentError::NoDriver(_) | AgentError::NoGpu => Self::Unsupported,
            AgentError::Damaged(_) => Self::Failure,
        }
    }
}

/// A failure with an exit code and a next step.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) what: String,
    /// What to do about it.
    pub(crate) hint: String,
    #[source]
    pub(crate) cause: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { exit, what: what.into(), hint: hint.into(), cause: None }
    }

    pub(crate) fn because(self, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { cause: Some(Box::new(cause)), ..self }
    }
}

/// A program that cannot be started.
pub(crate) fn not_started(program: &OsStr, error: std::io::Error) -> Failure {
    let name = program.to_string_lossy();
    match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new(
            Exit::NotFound,
            format!("there is no program `{name}`"),
            "check its name; a program in this directory is written ./NAME",
        ),
        _ => Failure::new(
            Exit::NotExecutable,
            format!("`{name}` cannot be started"),
            format!("check that it is a program and that you may execute it (chmod +x {name})"),
        ),
    }
    .because(error)
}

/// What a subcommand returns.
pub(crate) type Outcome = anyhow::Result<Exit>;

/// Prints a failure and turns an outcome into the process's exit code.
pub(crate) fn report(outcome: Outcome) -> ExitCode {
    let exit = match outcome {
        Ok(exit) => exit,
        Err(error) => {
            log::say(format_args!("dxpu: {}", words(&error)));
            exit_and_hint(&error).0
        }
    };
    ExitCode::from(exit.code())
}

/// What a failure says: what happened, why, and what to do, each on lines of its own.
pub(crate) fn words(error: &anyhow::Error) -> String {
    let mut words = error.to_string();
    for cause in error.chain().skip(1) {
        words.push_str(&format!("\n  because: {cause}"));
    }
    let (_, hint) = exit_and_hint(error);
    if !hint.is_empty() {
        words.push_str(&format!("\n  what to do: {hint}"));
    }
    words
}

/// The exit code of an error, and what its user should do; empty if the error does not say.
fn exit_and_hint(error: &anyhow::Error) -> (Exit, String) {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        (failure.exit, failure.hint.clone())
    } else if let Some(error) = error.downcast_ref::<AgentError>() {
        (Exit::of_agent(error), error.hint().to_owned())
    } else if let Some(error) = error.downcast_ref::<ClientError>() {
        (Exit::of_client(error), error.hint().to_owned())
    } else if let Some(error) = error.downcast_ref::<FileError>() {
        (Exit::Failure, error.hint())
    } else {
        (Exit::Failure, String::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;
    use pool_agent::Role;

    #[test]
    fn errors_of_other_crates_end_the_command_with_their_code_and_their_next_step() {
        let replaced = || AgentError::Replaced { role: Role::Box, reason: "box-1 is taken".to_owned() };
        let (exit, hint) = exit_and_hint(&replaced().into());
        assert!(exit == Exit::Refused && hint.contains("give this one another name"), "{hint}");
        let wrapped = Err::<(), _>(replaced()).context("the box ends").unwrap_err();
        assert_eq!(exit_and_hint(&wrapped).0, Exit::Refused, "under a context, too");
        let (exit, hint) = exit_and_hint(&ClientError::Settings("no address".to_owned()).into());
        assert!(exit == Exit::Usage && !hint.is_empty());
        let exposed = FileError::Exposed { path: "/etc/token".into(), mode: 0o644 };
        assert_eq!(
            exit_and_hint(&exposed.into()),
            (Exit::Failure, "make it private: chmod 600 /etc/token".to_owned())
        );
        assert_eq!(exit_and_hint(&anyhow::anyhow!("other")), (Exit::Failure, String::new()));
    }
}
