//! Tests of the whole crate over the fake driver, on machines without a GPU.

mod arrays;
mod copies_in;
mod copies_out;
mod cut_everywhere;
mod cut_failures;
mod cut_roads;
mod cut_speed;
mod cuts;
mod exports;
mod failures;
mod graphs;
mod guard;
mod link;
mod memory;
mod merged;
mod modules;
mod overcommit;
mod quota;
mod read_back;
mod session;
mod shared;
mod shares;
mod sharing_gate;
mod streams;
mod teardown;
mod waits;
