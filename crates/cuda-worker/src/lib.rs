//! The worker: executes one client's command stream on a driver.
