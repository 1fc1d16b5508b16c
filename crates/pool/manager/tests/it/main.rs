//! A real manager, in this process: real TLS on loopback, a real SQLite file, clients that know only the API.

mod backup;
mod bad_input;
mod bed;
mod dashboard;
mod followers;
mod hosts;
mod keeping;
mod lifecycle;
mod promises;
mod readiness;
mod revoke;
mod strangers;
mod survival;
mod trail;
