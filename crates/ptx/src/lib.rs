//! PTX parser and lockstep warp engine.
