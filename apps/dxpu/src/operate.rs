//! The pool's tools for operators: `dxpu audit`, `gpu`, `box`, `host`, `borrower`, `lease`, `tenant`, `spare`, `event`, `token`, `top`.
//!
//! Each command reads its arguments, asks a manager, and shows the answer: as a table that fits the terminal, or with
//! `-o json` exactly as the API gave it.

pub(crate) mod ask;
mod drain;
mod list;
mod models;
mod revoke;
mod usage;
pub(crate) mod words;

pub(crate) mod audit;
pub(crate) mod borrower;
pub(crate) mod doctor;
pub(crate) mod event;
pub(crate) mod function;
pub(crate) mod gpu;
pub(crate) mod gpu_box;
pub(crate) mod host;
pub(crate) mod lease;
pub(crate) mod spare;
pub(crate) mod status;
pub(crate) mod tenant;
pub(crate) mod token;
pub(crate) mod top;
