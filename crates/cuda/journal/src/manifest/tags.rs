//! Tags of the operations that the fold must look into. All others are skipped unread: a program launches a hundred thousand
//! kernels between two cuts.

pub(crate) const COPY_IN: u8 = 4;
pub(crate) const COPY_OUT: u8 = 5;
pub(crate) const ALLOCATE: u8 = 9;
pub(crate) const FREE: u8 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_wire::{HostData, Op, Plane, Shape, TransferId, Wire};

    #[test]
    fn tags_are_those_of_the_wire() {
        let (plane, shape, transfer) = (Plane::line(0), Shape::line(0), TransferId(0));
        let ops = [
            (COPY_IN, Op::CopyIn { target: plane, shape, data: HostData::Pushed { transfer } }),
            (COPY_OUT, Op::CopyOut { source: plane, shape, transfer }),
            (ALLOCATE, Op::Allocate { address: 0, bytes: 0 }),
            (FREE, Op::Free { address: 0 }),
        ];
        for (tag, op) in ops {
            assert_eq!(op.to_bytes()[0], tag, "{op:?}");
        }
    }
}
