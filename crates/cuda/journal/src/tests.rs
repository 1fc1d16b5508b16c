//! Models of a driver, a worker and a program, and what must hold for all of them.

mod acting;
mod commands;
mod manifest;
mod program;
mod survive;
mod tables;
mod truncation;
mod verdicts;
mod worker;
mod world;
