//! Commands that measure, predict and simulate: `bench`, `model`, `sim`, `trace`, `inject`.

pub(crate) mod bench;
pub(crate) mod inject;
pub(crate) mod model;
mod pass_through;
pub(crate) mod sim;
pub(crate) mod trace;
