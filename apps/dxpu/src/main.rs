//! `dxpu`: GPUs of other machines, for programs that know nothing of it.

#![forbid(unsafe_code)]

mod audit;
mod bench;
mod cli;
mod completions;
mod demo;
mod devices;
mod exit;
mod files;
mod inject;
mod library;
mod log;
mod man;
mod manager;
mod model;
mod nvidia;
mod pass_through;
mod pool_access;
mod preflight;
mod quantity;
mod run;
mod sim;
mod soft;
mod store_option;
mod trace;
mod worker;
mod worker_session;

use clap::Parser;

fn main() -> std::process::ExitCode {
    exit::report(cli::Cli::parse().command.run())
}
