//! The CUDA driver API as a table: one row per exported symbol.
