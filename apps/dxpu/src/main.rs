//! `dxpu`: GPUs of other machines, for programs that know nothing of it.
//!
//! ```text
//!   cli ──▶ roles (worker, box, host, manager, up, demo)   borrower (run, vm)   operate (the pool's tools)   study (bench, model, …)
//!             └──────────────────────────────────┴── support ──┴───────────────────────┘
//! ```

#![forbid(unsafe_code)]

mod borrower;
mod cli;
mod operate;
mod roles;
mod study;
mod support;

use clap::Parser;

fn main() -> std::process::ExitCode {
    support::secrets::keep();
    roles::up::end_with_parent();
    support::exit::report(cli::Cli::parse().command.run())
}
