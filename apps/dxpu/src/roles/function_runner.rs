//! `dxpu function-runner`: the processes between the service of functions and a function.

use crate::support::exit::{Exit, Outcome};
use functions_gateway::InnerOrder;
use std::ffi::OsString;

/// One instance of a function
#[derive(clap::Args)]
pub(crate) struct FunctionRunner {
    /// Become the program
    #[arg(long)]
    inner: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true)]
    program: Vec<OsString>,
}

impl FunctionRunner {
    pub(crate) fn run(self) -> Outcome {
        let code = if self.inner {
            functions_gateway::run_inner(InnerOrder { program: self.program })?
        } else {
            functions_gateway::run_outer()?
        };
        Ok(Exit::Program(code))
    }
}
