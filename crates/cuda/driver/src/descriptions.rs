//! What a driver found out about modules, kept by the worker between sessions.

/// A keeper of descriptions. Finding out about a module makes the driver load every kernel of it, which takes a second for
/// the libraries of a training program; a driver that knows the description need not load them.
///
/// A description is lost at any time, and never damaged: what comes back is what was put, or nothing.
pub trait Descriptions: Send + Sync {
    /// What was put under this key.
    fn get(&self, key: &[u8; 32]) -> Option<Vec<u8>>;

    /// Keeps a description. The key stands for the image and for everything else that the description depends on.
    fn put(&self, key: &[u8; 32], description: &[u8]);
}
