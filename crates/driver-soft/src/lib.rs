//! A CUDA device in software: the driver trait over the PTX engine.
