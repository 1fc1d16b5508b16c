//! Helpers for tests across processes.
