//! The plugin over its real sockets, called as the kubelet calls it, with a real manager behind it. The box reports as an
//! agent does and has no GPUs; the API server is a stand-in that shows claims.

mod api_server;
mod kubelet;
mod plugin;
mod pool;
