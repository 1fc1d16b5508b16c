//! What several commands need, and the commands about this program itself.

#[macro_use]
pub(crate) mod out;

pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod exit;
pub(crate) mod library;
pub(crate) mod log;
pub(crate) mod man;
pub(crate) mod notify;
pub(crate) mod paint;
pub(crate) mod places;
pub(crate) mod pool_access;
pub(crate) mod quantity;
pub(crate) mod quick_build;
pub(crate) mod secrets;
pub(crate) mod table;
pub(crate) mod yaml;
