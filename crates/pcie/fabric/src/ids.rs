//! The ends of a link, and the way of a packet between them.

use units::{NodeId, PathId, SlotId};

/// One end of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Which proxy.
    pub node: NodeId,
    /// Which of its slots.
    pub slot: SlotId,
}

impl Endpoint {
    /// A slot of a box.
    pub const fn new(node: u16, slot: u16) -> Self {
        Self { node: NodeId(node), slot: SlotId(slot) }
    }

    /// A host: its slot is 0.
    pub const fn host(node: u16) -> Self {
        Self::new(node, 0)
    }
}

/// What a header packet says about its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Route {
    /// From where.
    pub source: Endpoint,
    /// To where.
    pub destination: Endpoint,
    /// Over which path.
    pub path: PathId,
}
