//! What the engine asks of device memory.
//!
//! A kernel's accesses fall into a few allocations. So memory hands out *spans*: a span answers for a range of
//! addresses by itself, with one comparison an access, and the engine keeps the last few of them. Only an address
//! outside the kept spans costs a lookup.

/// One range of device memory that may be read and written while a kernel runs.
///
/// Every method checks its address and answers `None` outside its range. Addresses are aligned to the width of
/// the access: the engine checked that. Accesses of several host threads may race, as those of a GPU do; each must
/// be indivisible up to 8 bytes, and relaxed in order. Bytes are little-endian.
pub trait Span: Clone {
    /// Reads one byte.
    fn load8(&self, address: u64) -> Option<u8>;
    /// Reads two bytes.
    fn load16(&self, address: u64) -> Option<u16>;
    /// Reads four bytes.
    fn load32(&self, address: u64) -> Option<u32>;
    /// Reads eight bytes.
    fn load64(&self, address: u64) -> Option<u64>;
    /// Writes one byte.
    fn store8(&self, address: u64, value: u8) -> Option<()>;
    /// Writes two bytes.
    fn store16(&self, address: u64, value: u16) -> Option<()>;
    /// Writes four bytes.
    fn store32(&self, address: u64, value: u32) -> Option<()>;
    /// Writes eight bytes.
    fn store64(&self, address: u64, value: u64) -> Option<()>;
    /// Writes `new` if `old` is there, sequentially consistent. `Ok` has the old value, `Err` what was there instead.
    fn compare_exchange32(&self, address: u64, old: u32, new: u32) -> Option<Result<u32, u32>>;
    /// As [`Span::compare_exchange32`], for eight bytes.
    fn compare_exchange64(&self, address: u64, old: u64, new: u64) -> Option<Result<u64, u64>>;

    /// Adds and returns what was there before.
    fn fetch_add32(&self, address: u64, value: u32) -> Option<u32> {
        let mut old = self.load32(address)?;
        loop {
            match self.compare_exchange32(address, old, old.wrapping_add(value))? {
                Ok(_) => return Some(old),
                Err(now) => old = now,
            }
        }
    }
}

/// Device memory as a kernel sees it.
pub trait DeviceMemory: Sync {
    /// What answers for one allocation.
    type Span<'m>: Span
    where
        Self: 'm;

    /// The span that holds `address`, if anything is mapped there.
    ///
    /// Spans stay usable until the launch ends, so what a running kernel can reach must not be unmapped under it.
    fn span(&self, address: u64) -> Option<Self::Span<'_>>;
}
