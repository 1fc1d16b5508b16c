//! Arithmetic as PTX defines it, where it differs from what a processor offers.

pub(crate) mod convert;
pub(crate) mod round;
pub(crate) mod small;
