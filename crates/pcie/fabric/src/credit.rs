//! Credits: how much of each class a receiver has room for.
//!
//! As on a PCIe link, counts only grow: the receiver says how much it has ever allowed, the sender knows how much it
//! has ever sent, and the difference is free. A count that is lost or overtaken does no harm. One credit for the header
//! of a TLP, one for each 16 bytes of its payload.

use tlp::Class;

/// Bytes of payload that one data credit pays for.
pub(crate) const DATA_CREDIT_BYTES: usize = 16;

/// Counts for the three classes, in the order of [`Class::index`]. They wrap around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credits {
    /// TLPs.
    pub headers: [u32; 3],
    /// Sixteenths of payload bytes.
    pub data: [u32; 3],
}

/// Credits for the payload of one TLP.
pub(crate) const fn data_credits(payload_bytes: usize) -> u32 {
    payload_bytes.div_ceil(DATA_CREDIT_BYTES) as u32
}

impl Credits {
    /// Room for so many TLPs and so many bytes of payload, for each class.
    pub const fn room(tlps: [u32; 3], payload_bytes: [u32; 3]) -> Self {
        let each = DATA_CREDIT_BYTES as u32;
        let [posted, non_posted, completion] = payload_bytes;
        Self { headers: tlps, data: [posted / each, non_posted / each, completion / each] }
    }

    /// Counts one TLP.
    pub fn add(&mut self, class: Class, data: u32) {
        let at = class.index();
        self.headers[at] = self.headers[at].wrapping_add(1);
        self.data[at] = self.data[at].wrapping_add(data);
    }

    /// Whether one more TLP fits between `self`, what was used, and `limit`.
    pub fn has_room(&self, limit: &Self, class: Class, data: u32) -> bool {
        let at = class.index();
        free(limit.headers[at], self.headers[at]) >= 1 && free(limit.data[at], self.data[at]) >= data
    }

    /// The same where the limit is [`Credits::limit_of`] `room` and `taken`, of which only one class is looked at.
    pub(crate) fn has_room_in(&self, room: &Self, taken: &Self, class: Class, data: u32) -> bool {
        let at = class.index();
        free(room.headers[at].wrapping_add(taken.headers[at]), self.headers[at]) >= 1
            && free(room.data[at].wrapping_add(taken.data[at]), self.data[at]) >= data
    }

    /// Takes over those of `newer` that are ahead.
    pub fn advance(&mut self, newer: &Self) {
        for at in 0..3 {
            self.headers[at] = later(self.headers[at], newer.headers[at]);
            self.data[at] = later(self.data[at], newer.data[at]);
        }
    }

    /// What may be used up to when `used` was taken and all of `room` is free again.
    pub fn limit_of(room: &Self, taken: &Self) -> Self {
        let sum = |a: [u32; 3], b: [u32; 3]| [0, 1, 2].map(|at: usize| a[at].wrapping_add(b[at]));
        Self { headers: sum(room.headers, taken.headers), data: sum(room.data, taken.data) }
    }

    /// Whether `room` and what was freed of it are ahead of `told` by a quarter of `room`, in either count of a class: then
    /// the other side should hear of it.
    pub(crate) fn is_worth_telling(&self, told: &Self, room: &Self, class: Class) -> bool {
        let at = class.index();
        let is_ahead =
            |freed: u32, told: u32, room: u32| room.wrapping_add(freed).wrapping_sub(told) > room / 4;
        is_ahead(self.headers[at], told.headers[at], room.headers[at])
            || is_ahead(self.data[at], told.data[at], room.data[at])
    }
}

/// How far `limit` is ahead of `used`; zero when it is behind.
fn free(limit: u32, used: u32) -> u32 {
    match limit.wrapping_sub(used) {
        ahead if ahead < 1 << 31 => ahead,
        _ => 0,
    }
}

fn later(a: u32, b: u32) -> u32 {
    if b.wrapping_sub(a) < 1 << 31 { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_wrap_around_and_never_go_back() {
        let room = Credits::room([2, 1, 1], [64, 16, 16]);
        let mut used = Credits { headers: [u32::MAX; 3], data: [u32::MAX - 1; 3] };
        let mut limit = Credits::limit_of(&room, &used);
        assert!(used.has_room(&limit, Class::Posted, 4));
        assert!(!used.has_room(&limit, Class::Posted, 5));
        used.add(Class::Posted, 4);
        assert!(!used.has_room(&limit, Class::Posted, 1));
        assert!(used.has_room(&limit, Class::Posted, 0));
        used.add(Class::Posted, 0);
        assert!(!used.has_room(&limit, Class::Posted, 0));
        let (old, newer) = (limit, Credits::limit_of(&room, &used));
        limit.advance(&newer);
        limit.advance(&old);
        assert_eq!(limit, newer);
    }
}
