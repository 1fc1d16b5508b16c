//! Simulations over the real cores.
