//! `dxpu`: GPUs of other machines, for programs that know nothing of it.

#![forbid(unsafe_code)]

mod audit;
mod bench;
mod borrow;
mod cli;
mod completions;
mod demo;
mod devices;
mod exit;
mod gpubox;
mod inject;
mod join_token;
mod library;
mod log;
mod man;
mod manager;
mod model;
mod nvidia;
mod pass_through;
mod pcie_host;
mod pool;
mod pool_access;
mod preflight;
mod quantity;
mod run;
mod secrets;
mod sim;
mod soft;
mod store_option;
mod trace;
mod up;
mod vm;
mod worker;
mod worker_session;

use clap::Parser;

fn main() -> std::process::ExitCode {
    secrets::keep();
    up::end_with_parent();
    exit::report(cli::Cli::parse().command.run())
}
