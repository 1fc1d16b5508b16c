//! The functions, by theme. What a theme does not have is in `refused`.

mod clocks;
mod error_text;
mod errors;
mod events;
mod fields;
mod identity;
mod init;
mod link;
mod lookup;
mod memory;
mod modes;
mod power;
mod private;
mod processes;
mod refused;
mod system;
mod temperature;
mod topology;
mod usage;
