//! The ends of a link: nodes, slots, paths, leases and their epochs.

use std::fmt;

macro_rules! ids {
    ($($(#[$meta:meta])* $name:ident($inner:ty) = $word:literal;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, "-{}"), self.0)
            }
        }
    )*};
}

ids! {
    /// Counts how often a lease changed hands; packets of an older one are dropped.
    Epoch(u32) = "epoch";
    /// Names a link. A lease with several GPUs has one for each slot.
    LeaseId(u32) = "lease";
    /// A proxy, on a host or on a box. The manager gives them out.
    NodeId(u16) = "node";
    /// One network route between a host and a box.
    PathId(u16) = "path";
    /// A place for a device in a box; 0 on a host.
    SlotId(u16) = "slot";
}

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
