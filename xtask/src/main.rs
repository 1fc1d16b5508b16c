//! `cargo run -p xtask -- codegen`: writes everything that follows from the table of the driver API.

#![forbid(unsafe_code)]

mod codegen;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["codegen"] | ["codegen", "cuda-api"] => codegen::write(),
        _ => bail!("usage: cargo run -p xtask -- codegen [cuda-api]"),
    }
}
