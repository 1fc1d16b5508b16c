//! libcuda.so.1: the C border of the api plane.
