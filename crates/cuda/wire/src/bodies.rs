//! Where the bodies of conditional nodes are in the list of a graph's nodes: right before their node, one after the other.
//!
//! ```text
//!   0 kernel    1 kernel    2 kernel ─▶ 3 kernel    4 conditional { bodies: [1, 2] }    5 kernel
//!               └ body 0    └ body 1
//! ```

use crate::op::{GraphNode, Op};
use core::ops::Range;

/// Bodies within bodies are so deep at most.
pub const BODIES_DEEP_MAX: usize = 16;

/// A node of one level and the bodies that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelNode {
    /// Its place in the list.
    pub index: usize,
    /// Where its bodies are.
    pub bodies: Vec<Range<usize>>,
}

/// The nodes in `range` that are in no body there; `None` if the sizes of bodies do not fit. `sizes` tells those of a node.
pub fn level<'n>(range: Range<usize>, sizes: impl Fn(usize) -> &'n [u32]) -> Option<Vec<LevelNode>> {
    let mut nodes = Vec::new();
    let mut end = range.end;
    while end > range.start {
        let index = end - 1;
        let mut bodies = Vec::new();
        end = index;
        for size in sizes(index).iter().rev() {
            let start = end.checked_sub(*size as usize).filter(|start| *start >= range.start)?;
            bodies.push(start..end);
            end = start;
        }
        bodies.reverse();
        nodes.push(LevelNode { index, bodies });
    }
    nodes.reverse();
    Some(nodes)
}

impl GraphNode<'_> {
    /// The sizes of its bodies.
    pub fn bodies(&self) -> &[u32] {
        match &self.op {
            Op::Conditional { bodies, .. } => bodies,
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(index: usize) -> LevelNode {
        LevelNode { index, bodies: Vec::new() }
    }

    #[test]
    fn bodies_lie_before_their_node() {
        // 0, body 1..2, body 2..4 (with a body 2..3 of node 3), node 4, then 5.
        let sizes: [&[u32]; 6] = [&[], &[], &[], &[1], &[1, 2], &[]];
        let top = level(0..6, |index| sizes[index]);
        let outer = LevelNode { index: 4, bodies: vec![1..2, 2..4] };
        assert_eq!(top, Some(vec![plain(0), outer, plain(5)]));
        let inner = LevelNode { index: 3, bodies: std::iter::once(2..3).collect() };
        assert_eq!(level(2..4, |index| sizes[index]), Some(vec![inner]));
        assert_eq!(level(1..2, |index| sizes[index]), Some(vec![plain(1)]));
    }

    #[test]
    fn bodies_that_do_not_fit_are_noticed() {
        let sizes: [&[u32]; 2] = [&[], &[2]];
        assert_eq!(level(0..2, |index| sizes[index]), None);
        assert_eq!(level(0..2, |_| &[u32::MAX, u32::MAX]), None);
        let empty: [&[u32]; 1] = [&[0, 0]];
        let node = LevelNode { index: 0, bodies: vec![0..0, 0..0] };
        assert_eq!(level(0..1, |index| empty[index]), Some(vec![node]));
    }
}
