//! Connections that carry the api plane: TCP, TLS, Unix sockets, shared-memory rings, a delay emulator.
