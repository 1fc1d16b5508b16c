//! The driver API as a table: one row a function, with what each argument is and what becomes of the call.
//!
//! The rows are the text files in `table/`, one a group; `data/` holds what a real driver exports and what its
//! cuGetProcAddress answers. Thunks, the cuGetProcAddress table and the coverage page are generated from them by
//! `cargo xtask codegen`. This crate only reads and checks; it is no part of a running program.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

mod argument;
mod check;
mod data;
mod parse;
mod prototype;
mod row;

pub use argument::{Argument, HANDLE_KINDS, Kind, Length, SCALARS, STRUCTS, Type};
pub use check::{check_commands, check_exports, check_rows};
pub use data::{EXPORTS, ProcAddressStep, TABLE_FILES, exports, proc_address_steps};
pub use parse::{TableError, parse};
pub use prototype::check_prototypes;
pub use row::{Class, Flavour, Row, Symbol, Via};

/// All rows of the committed table, file after file.
pub fn rows() -> Result<Vec<Row<'static>>, TableError> {
    let mut rows = Vec::new();
    for (group, text) in TABLE_FILES {
        rows.extend(parse(group, text)?);
    }
    Ok(rows)
}
