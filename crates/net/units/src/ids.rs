//! Names of ends and ways in the network, and of pairings.

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
    /// Counts the pairings of a box's slot. What belongs to an older one is dropped. As wide as the ledger's epoch, from
    /// which it comes.
    Epoch(u64) = "epoch";
    /// A proxy, on a host or on a box. The manager gives the numbers out.
    NodeId(u16) = "node";
    /// A place for a device in a box; 0 on a host.
    SlotId(u16) = "slot";
    /// One network route between a host and a box.
    PathId(u16) = "path";
    /// Names a link on the network: the box's slot that it serves. A slot has one link at a time.
    LinkName(u32) = "link";
}

/// A number that a format has no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value} does not fit into {bits} bits")]
pub struct TooLarge {
    /// What it counts.
    pub what: &'static str,
    /// The number.
    pub value: u64,
    /// The room that the format has.
    pub bits: u32,
}

impl Epoch {
    /// The epoch for a format that has 32 bits for it.
    pub fn in_32_bits(self) -> Result<u32, TooLarge> {
        u32::try_from(self.0).map_err(|_| TooLarge { what: "epoch", value: self.0, bits: 32 })
    }
}

impl From<u32> for Epoch {
    fn from(epoch: u32) -> Self {
        Self(epoch.into())
    }
}

impl LinkName {
    /// The link of a box's slot.
    pub const fn of(box_node: NodeId, box_slot: SlotId) -> Self {
        let ([a, b], [c, d]) = (box_node.0.to_be_bytes(), box_slot.0.to_be_bytes());
        Self(u32::from_be_bytes([a, b, c, d]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_never_cut_off() {
        assert_eq!(Epoch(7).in_32_bits(), Ok(7));
        assert_eq!(Epoch(u32::MAX.into()).in_32_bits(), Ok(u32::MAX));
        // Their lower halves are the epochs 0 and 7, which other tenants had.
        for value in [1 << 32, (1 << 32) + 7, u64::MAX] {
            let refused = Epoch(value).in_32_bits();
            assert_eq!(refused, Err(TooLarge { what: "epoch", value, bits: 32 }));
        }
        let refused = Epoch(1 << 32).in_32_bits().unwrap_err();
        assert_eq!(refused.to_string(), "epoch 4294967296 does not fit into 32 bits");
        assert_eq!(Epoch::from(u32::MAX).in_32_bits(), Ok(u32::MAX));
    }

    #[test]
    fn each_slot_of_each_box_has_a_link_of_its_own() {
        assert_eq!(LinkName::of(NodeId(2), SlotId(5)), LinkName(2 << 16 | 5));
        assert_eq!(LinkName::of(NodeId(u16::MAX), SlotId(u16::MAX)), LinkName(u32::MAX));
        assert_ne!(LinkName::of(NodeId(1), SlotId(0)), LinkName::of(NodeId(0), SlotId(1)));
    }

    #[test]
    fn names_read_as_words() {
        let shown = [
            Epoch(3).to_string(),
            NodeId(1).to_string(),
            SlotId(2).to_string(),
            PathId(1).to_string(),
            LinkName(9).to_string(),
        ];
        assert_eq!(shown, ["epoch-3", "node-1", "slot-2", "path-1", "link-9"]);
    }
}
