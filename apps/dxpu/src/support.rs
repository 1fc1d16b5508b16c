//! What several commands need, and the commands about this program itself.

pub(crate) mod completions;
pub(crate) mod exit;
pub(crate) mod library;
pub(crate) mod log;
pub(crate) mod man;
pub(crate) mod paint;
pub(crate) mod places;
pub(crate) mod pool_access;
pub(crate) mod quantity;
pub(crate) mod secrets;
pub(crate) mod table;
