//! How `dxpu` ends: every failure says what happened, why, and what to do next.

use crate::log;
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

/// What a subcommand returns.
pub(crate) type Outcome = anyhow::Result<Exit>;

/// Prints a failure and turns an outcome into the process's exit code.
pub(crate) fn report(outcome: Outcome) -> ExitCode {
    let exit = match outcome {
        Ok(exit) => exit,
        Err(error) => {
            log::say(format_args!("dxpu: {error}"));
            for cause in error.chain().skip(1) {
                log::say(format_args!("  because: {cause}"));
            }
            let failure = error.downcast_ref::<Failure>();
            if let Some(failure) = failure.filter(|failure| !failure.hint.is_empty()) {
                log::say(format_args!("  what to do: {}", failure.hint));
            }
            failure.map_or(Exit::Failure, |failure| failure.exit)
        }
    };
    ExitCode::from(exit.code())
}
