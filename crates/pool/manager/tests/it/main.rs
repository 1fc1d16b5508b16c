//! A real manager, in this process: real TLS on loopback, a real SQLite file, clients that know only the API.

mod bad_input;
mod bed;
mod followers;
mod hosts;
mod lifecycle;
mod promises;
mod readiness;
mod revoke;
mod strangers;
mod trail;
