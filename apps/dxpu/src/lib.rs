//! `dxpu`: GPUs of other machines, for programs that know nothing of it. All of it but the client libraries that the binary has
//! inside: those take as long to build as this, so both are built at the same time, and `apps/binary` puts them together.
//!
//! ```text
//!   cli ──▶ roles (worker, box, host, manager, up, demo)   borrower (run, vm)   operate (the pool's tools)   study (bench, model, …)
//!             └──────────────────────────────────┴── support ──┴───────────────────────┘
//! ```

#![forbid(unsafe_code)]

// First, because its macros print the answers of all the others.
#[macro_use]
mod support;

mod borrower;
mod cli;
mod operate;
mod roles;
mod study;

pub use support::library::{Carried, Packed};

/// What the process does, from its arguments to its exit. `carried`: the client libraries that the binary has inside.
pub fn main(carried: &'static Carried) -> std::process::ExitCode {
    keep_name();
    support::library::carry(carried);
    support::secrets::keep();
    roles::up::end_with_parent();
    support::exit::report(cli::run())
}

/// A process that `machine::this_program` started is called `exe`, after the file it was started by: it takes its own name.
/// Only lists of processes show it, so a failure is nothing.
fn keep_name() {
    const NAME: &str = "/proc/self/comm";
    if std::fs::read(NAME).is_ok_and(|name| name == b"exe\n") {
        let _ = std::fs::write(NAME, "dxpu");
    }
}
