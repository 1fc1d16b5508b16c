//! Names of graphs and nodes, and what an edge carries.

use core::fmt;
use cuda_abi::{CuResult, CudaError};

/// Where the kind of a handle begins; see [`crate::slab`] for the same layout.
const KIND_SHIFT: u32 = 40;

macro_rules! graph_ids {
    ($($(#[$meta:meta])* $name:ident = $kind:literal $text:literal;)*) => {$(
        $(#[$meta])*
        ///
        /// It is the handle that the program sees: a kind and a number that is never used again, so a stale one is
        /// simply not found.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// The `serial`-th of its kind; the first is 1.
            pub const fn of_serial(serial: u64) -> Self {
                Self($kind << KIND_SHIFT | serial)
            }

            /// Which of its kind it is.
            pub const fn serial(self) -> u64 {
                self.0 & ((1 << KIND_SHIFT) - 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($text, "-{}"), self.serial())
            }
        }
    )*};
}

graph_ids! {
    /// A graph, or a graph embedded in a node.
    GraphId = 0x20 "graph";
    /// A node. Later nodes have higher numbers.
    NodeId = 0x21 "node";
}

/// `CUgraphEdgeData`: which part of a node waits for which part of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EdgeData {
    /// 0 all of the upstream node, 1 its programmatic trigger, 2 its launch.
    pub from_port: u8,
    /// Always 0: no node has other ports.
    pub to_port: u8,
    /// `CUgraphDependencyType`: 0 default, 1 programmatic.
    pub kind: u8,
}

/// The highest outgoing port of a kernel node.
const KERNEL_PORT_MAX: u8 = 2;
/// `CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC`.
const PROGRAMMATIC: u8 = 1;

impl EdgeData {
    /// The eight bytes of C.
    pub fn from_bytes(bytes: [u8; 8]) -> CuResult<Self> {
        match bytes {
            [from_port, to_port, kind, 0, 0, 0, 0, 0] => Ok(Self { from_port, to_port, kind }),
            _ => Err(CudaError::INVALID_VALUE),
        }
    }

    /// The eight bytes of C.
    pub const fn to_bytes(self) -> [u8; 8] {
        [self.from_port, self.to_port, self.kind, 0, 0, 0, 0, 0]
    }

    /// Whether the whole downstream node waits for the whole upstream node.
    pub fn is_default(self) -> bool {
        self == Self::default()
    }

    /// Only edges between kernels have ports and a type.
    pub(super) fn check(self, between_kernels: bool) -> CuResult<()> {
        let known = self.from_port <= KERNEL_PORT_MAX && self.to_port == 0 && self.kind <= PROGRAMMATIC;
        if known && (between_kernels || self.is_default()) { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_a_kind_and_a_number() {
        let node = NodeId::of_serial(7);
        assert_eq!((node.0, node.serial()), (0x2100_0000_0007, 7));
        assert_eq!(GraphId::of_serial(3).to_string(), "graph-3");
    }

    #[test]
    fn edge_data_is_eight_bytes_of_which_five_are_zero() {
        let programmatic = EdgeData { from_port: 1, to_port: 0, kind: 1 };
        assert_eq!(EdgeData::from_bytes(programmatic.to_bytes()), Ok(programmatic));
        assert_eq!(EdgeData::from_bytes([0, 0, 0, 1, 0, 0, 0, 0]), Err(CudaError::INVALID_VALUE));
    }

    #[test]
    fn ports_are_for_kernels() {
        let programmatic = EdgeData { from_port: 1, to_port: 0, kind: 1 };
        assert_eq!(programmatic.check(true), Ok(()));
        assert_eq!(programmatic.check(false), Err(CudaError::INVALID_VALUE));
        assert_eq!(EdgeData::default().check(false), Ok(()));
        for bad in [[9, 0, 1], [0, 1, 0], [0, 0, 7]] {
            let [from_port, to_port, kind] = bad;
            assert_eq!(EdgeData { from_port, to_port, kind }.check(true), Err(CudaError::INVALID_VALUE));
        }
    }
}
