//! The controller against a real manager and a stand-in of the API server.

mod api_server;
mod bed;
mod claims;
mod election;
mod faults;
mod slices;
