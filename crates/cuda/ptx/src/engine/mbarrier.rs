//! mbarrier objects: one 64-bit word of shared memory.
//!
//! Bit 0 is the phase; then 20 bits of arrivals still missing, 20 bits of arrivals a phase needs, and 22 bits of bytes
//! that asynchronous copies still owe, signed.

use super::{
    access::Reach,
    fault::{FaultKind, Trouble},
};
use crate::{
    code::{LANES, Mbarrier, MbarrierKind, Row, lanes},
    memory::DeviceMemory,
};

const COUNT: u64 = 0xF_FFFF;

#[derive(Clone, Copy)]
struct Object {
    phase: u64,
    pending: u64,
    expected: u64,
    bytes: i64,
}

impl Object {
    fn unpack(word: u64) -> Self {
        Self {
            phase: word & 1,
            pending: word >> 1 & COUNT,
            expected: word >> 21 & COUNT,
            bytes: (word << 1) as i64 >> 42,
        }
    }

    fn pack(self) -> u64 {
        self.phase
            | (self.pending & COUNT) << 1
            | (self.expected & COUNT) << 21
            | (self.bytes as u64 & 0x3F_FFFF) << 41
    }

    fn settle(&mut self) {
        if self.pending == 0 && self.bytes == 0 {
            self.phase ^= 1;
            self.pending = self.expected;
        }
    }
}

impl<M: DeviceMemory> Reach<'_, '_, M> {
    /// One mbarrier instruction: the row it gives, and the predicate.
    pub(super) fn mbarrier(
        &mut self,
        op: &Mbarrier,
        places: &Row,
        operand: Option<&Row>,
        mask: u32,
    ) -> Result<(Row, u32), Trouble> {
        let mut row = [0; LANES];
        let mut truth = 0;
        for lane in lanes(mask) {
            let place = places[lane];
            let illegal = || Trouble::at(FaultKind::IllegalAddress, lane, place);
            if !place.is_multiple_of(8) {
                return Err(Trouble::at(FaultKind::MisalignedAddress, lane, place));
            }
            let before = self.load_lane(op.at.space, lane, place, 8).ok_or_else(illegal)?;
            let mut object = Object::unpack(before);
            let value = operand.map(|row| row[lane]);
            match op.kind {
                MbarrierKind::Init => {
                    let count = value.unwrap_or(0) & COUNT;
                    object = Object { phase: 0, pending: count, expected: count, bytes: 0 };
                }
                MbarrierKind::Inval => object = Object::unpack(0),
                MbarrierKind::Arrive { drop, expect } => {
                    row[lane] = before;
                    let count = if expect { 1 } else { value.map_or(1, |value| value & 0xFFFF_FFFF) };
                    if expect {
                        object.bytes += value.unwrap_or(0) as u32 as i64;
                    }
                    if object.pending < count {
                        let message = "more arrivals at an mbarrier than it expects";
                        return Err(Trouble::saying(FaultKind::IllegalInstruction, lane, message));
                    }
                    object.pending -= count;
                    if drop {
                        object.expected = object.expected.saturating_sub(count);
                    }
                    object.settle();
                }
                MbarrierKind::Test { parity } => {
                    let wanted = value.unwrap_or(0) & 1;
                    let _ = parity;
                    truth |= u32::from(object.phase != wanted) << lane;
                    continue;
                }
                MbarrierKind::ExpectTx => object.bytes += value.unwrap_or(0) as u32 as i64,
                MbarrierKind::CompleteTx => {
                    object.bytes -= value.unwrap_or(0) as u32 as i64;
                    object.settle();
                }
                MbarrierKind::PendingCount => {}
            }
            self.store_lane(op.at.space, lane, place, 8, object.pack()).ok_or_else(illegal)?;
        }
        Ok((row, truth))
    }
}
