//! The client side of the api plane: handles, addresses, contexts, capture and graphs, without I/O.
