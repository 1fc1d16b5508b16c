//! How a transfer tells that it is over.

use cuda_wire::LinkLost;

/// Called once, when a transfer is over: its source or sink is not called any more.
pub type Done = Box<dyn FnOnce(Result<(), LinkLost>) + Send>;
