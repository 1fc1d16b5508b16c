//! Graphs and stream capture, kept by the client.
//!
//! A graph is a value of the client: making, asking, cloning and capturing one needs no worker. Only an instantiated
//! graph travels, laid flat. What a call must return in each odd case was asked of the real driver (CUDA 13.0 on an
//! H200); where the documentation says something else, the driver wins and the place says so.
//!
//! Reading order:
//!
//! 1. [`ids`]: names of graphs and nodes, and what an edge carries.
//! 2. [`store`]: all graphs of a process, their nodes and edges.
//! 3. [`snapshot`]: a graph as a value, in an order it can run in, children laid flat.
//! 4. [`update`]: which node of one graph stands for which of another (cuGraphExecUpdate).
//! 5. [`dot`]: a graph as text for a drawing.
//! 6. [`capture`]: from stream calls to nodes.

pub mod capture;
pub mod dot;
pub mod ids;
pub mod snapshot;
pub mod store;
pub mod update;

pub use ids::{EdgeData, GraphId, NodeId};
pub use snapshot::{Flat, FlatNode, Snapshot};
pub use store::{Graphs, Payload};
pub use update::{Mismatch, UpdateResult};

#[cfg(test)]
mod tests;
