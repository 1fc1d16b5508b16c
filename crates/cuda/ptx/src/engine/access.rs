//! Loads, stores and atomics of a warp.

use super::{
    fault::{FaultKind, Trouble},
    warp::Warp,
};
use crate::{
    address::{LOCAL, PARAM, SHARED, in_window, is_device},
    code::{Address, Atomic, AtomicKind, Mem, Row, SINK, lanes},
    memory::{DeviceMemory, Span},
};

/// The spans a worker used last.
pub(super) struct Spans<'m, M: DeviceMemory> {
    memory: &'m M,
    recent: Vec<M::Span<'m>>,
}

/// How many spans are kept: a kernel rarely touches more arrays at once.
const RECENT_MAX: usize = 8;

impl<'m, M: DeviceMemory> Spans<'m, M> {
    pub(super) fn new(memory: &'m M) -> Self {
        Self { memory, recent: Vec::new() }
    }

    /// Asks the spans used last, then memory itself.
    pub(super) fn find<T>(&mut self, address: u64, f: impl Fn(&M::Span<'m>) -> Option<T>) -> Option<T> {
        for index in 0..self.recent.len() {
            if let Some(value) = f(&self.recent[index]) {
                self.recent.swap(0, index);
                return Some(value);
            }
        }
        let span = self.memory.span(address)?;
        let value = f(&span)?;
        self.recent.truncate(RECENT_MAX - 1);
        self.recent.insert(0, span);
        Some(value)
    }

    pub(super) fn load(&mut self, address: u64, width: u32) -> Option<u64> {
        self.find(address, |span| load_span(span, address, width))
    }

    fn store(&mut self, address: u64, width: u32, value: u64) -> Option<()> {
        self.find(address, |span| store_span(span, address, width, value))
    }
}

#[inline]
fn load_span<S: Span>(span: &S, address: u64, width: u32) -> Option<u64> {
    match width {
        1 => span.load8(address).map(u64::from),
        2 => span.load16(address).map(u64::from),
        4 => span.load32(address).map(u64::from),
        _ => span.load64(address),
    }
}

#[inline]
fn store_span<S: Span>(span: &S, address: u64, width: u32, value: u64) -> Option<()> {
    match width {
        1 => span.store8(address, value as u8),
        2 => span.store16(address, value as u16),
        4 => span.store32(address, value as u32),
        _ => span.store64(address, value),
    }
}

#[inline]
fn load_bytes(bytes: &[u8], offset: u64, width: u32) -> Option<u64> {
    let start = usize::try_from(offset).ok()?;
    let part = bytes.get(start..start.checked_add(width as usize)?)?;
    Some(match part.len() {
        1 => u64::from(part[0]),
        2 => u64::from(u16::from_le_bytes(part.try_into().ok()?)),
        4 => u64::from(u32::from_le_bytes(part.try_into().ok()?)),
        _ => u64::from_le_bytes(part.try_into().ok()?),
    })
}

#[inline]
fn store_bytes(bytes: &mut [u8], offset: u64, width: u32, value: u64) -> Option<()> {
    let start = usize::try_from(offset).ok()?;
    let part = bytes.get_mut(start..start.checked_add(width as usize)?)?;
    part.copy_from_slice(&value.to_le_bytes()[..width as usize]);
    Some(())
}

#[inline]
fn extend(value: u64, width: u32, signed: bool) -> u64 {
    if !signed {
        return value;
    }
    match width {
        1 => value as i8 as i64 as u64,
        2 => value as i16 as i64 as u64,
        4 => value as i32 as i64 as u64,
        _ => value,
    }
}

/// Everything one access may touch.
pub(super) struct Reach<'a, 'm, M: DeviceMemory> {
    pub(super) spans: &'a mut Spans<'m, M>,
    pub(super) shared: &'a mut [u8],
    pub(super) params: &'a [u8],
    pub(super) warp: &'a mut Warp,
    /// Frame of the current function in local memory.
    pub(super) base_local: u32,
}

impl<M: DeviceMemory> Reach<'_, '_, M> {
    pub(super) fn load_lane(&mut self, space: Mem, lane: usize, address: u64, width: u32) -> Option<u64> {
        match space {
            Mem::Generic if is_device(address) => self.spans.load(address, width),
            Mem::Generic if in_window(address, SHARED) => load_bytes(self.shared, address - SHARED, width),
            Mem::Generic if in_window(address, LOCAL) => {
                load_bytes(&self.warp.local[lane], address - LOCAL, width)
            }
            Mem::Generic if in_window(address, PARAM) => load_bytes(self.params, address - PARAM, width),
            Mem::Generic => None,
            Mem::Shared => load_bytes(self.shared, shared_offset(address), width),
            Mem::Local => load_bytes(&self.warp.local[lane], address & 0xFFFF_FFFF, width),
            Mem::Frame => {
                load_bytes(&self.warp.local[lane], address.wrapping_add(u64::from(self.base_local)), width)
            }
            Mem::Param => load_bytes(self.params, address, width),
        }
    }

    pub(super) fn store_lane(
        &mut self,
        space: Mem,
        lane: usize,
        address: u64,
        width: u32,
        value: u64,
    ) -> Option<()> {
        match space {
            Mem::Generic if is_device(address) => self.spans.store(address, width, value),
            Mem::Generic if in_window(address, SHARED) => {
                store_bytes(self.shared, address - SHARED, width, value)
            }
            Mem::Generic if in_window(address, LOCAL) => {
                store_bytes(&mut self.warp.local[lane], address - LOCAL, width, value)
            }
            Mem::Generic | Mem::Param => None,
            Mem::Shared => store_bytes(self.shared, shared_offset(address), width, value),
            Mem::Local => store_bytes(&mut self.warp.local[lane], address & 0xFFFF_FFFF, width, value),
            Mem::Frame => store_bytes(
                &mut self.warp.local[lane],
                address.wrapping_add(u64::from(self.base_local)),
                width,
                value,
            ),
        }
    }

    /// Checks that every lane's address is a multiple of `align`.
    #[inline]
    fn check(addresses: &Row, mask: u32, align: u64) -> Result<(), Trouble> {
        // All lanes at once first; only if one of them is odd does it matter which take part.
        let any = addresses.iter().fold(0, |any, address| any | address);
        if any & (align - 1) == 0 {
            return Ok(());
        }
        match lanes(mask).find(|&lane| addresses[lane] & (align - 1) != 0) {
            Some(lane) => Err(Trouble::at(FaultKind::MisalignedAddress, lane, addresses[lane])),
            None => Ok(()),
        }
    }

    /// Loads one value in every lane of the mask into `out`.
    #[inline]
    pub(super) fn load(
        &mut self,
        space: Mem,
        addresses: &Row,
        mask: u32,
        width: u32,
        signed: bool,
        out: &mut Row,
    ) -> Result<(), Trouble> {
        if space == Mem::Param {
            return self.load_uniform(addresses, mask, width, signed, out);
        }
        Self::check(addresses, mask, u64::from(width))?;
        // Most warps stay inside one allocation, and most often inside the last one used.
        let done = match (space, self.spans.recent.first(), width) {
            (Mem::Generic, Some(span), 4) => {
                load_all(out, addresses, mask, |at| span.load32(at).map(u64::from))
            }
            (Mem::Generic, Some(span), 8) => load_all(out, addresses, mask, |at| span.load64(at)),
            (Mem::Generic, Some(span), 1) => {
                load_all(out, addresses, mask, |at| span.load8(at).map(u64::from))
            }
            (Mem::Generic, Some(span), _) => {
                load_all(out, addresses, mask, |at| span.load16(at).map(u64::from))
            }
            (Mem::Shared, _, 4) => load_all(out, addresses, mask, |at| slice32(self.shared, at)),
            (Mem::Shared, _, 8) => {
                load_all(out, addresses, mask, |at| load_bytes(self.shared, at as u32 as u64, 8))
            }
            _ => 0,
        };
        for lane in lanes(mask & !done) {
            out[lane] = self
                .load_lane(space, lane, addresses[lane], width)
                .ok_or_else(|| Trouble::at(FaultKind::IllegalAddress, lane, addresses[lane]))?;
        }
        if signed {
            for value in out.iter_mut() {
                *value = extend(*value, width, true);
            }
        }
        Ok(())
    }

    /// Parameters of a kernel are the same for all lanes, and almost always at the same place.
    fn load_uniform(
        &mut self,
        addresses: &Row,
        mask: u32,
        width: u32,
        signed: bool,
        out: &mut Row,
    ) -> Result<(), Trouble> {
        let first = mask.trailing_zeros() as usize & 31;
        if addresses.iter().all(|&address| address == addresses[first]) {
            let value = load_bytes(self.params, addresses[first], width)
                .ok_or_else(|| Trouble::at(FaultKind::IllegalAddress, first, addresses[first]))?;
            out.fill(extend(value, width, signed));
            return Ok(());
        }
        for lane in lanes(mask) {
            let value = load_bytes(self.params, addresses[lane], width)
                .ok_or_else(|| Trouble::at(FaultKind::IllegalAddress, lane, addresses[lane]))?;
            out[lane] = extend(value, width, signed);
        }
        Ok(())
    }

    #[inline]
    pub(super) fn store(
        &mut self,
        space: Mem,
        addresses: &Row,
        mask: u32,
        width: u32,
        values: &Row,
    ) -> Result<(), Trouble> {
        Self::check(addresses, mask, u64::from(width))?;
        let mut left = mask;
        if space == Mem::Generic
            && let Some(span) = self.spans.recent.first()
        {
            let done = match width {
                4 => store_all(addresses, mask, |lane, at| span.store32(at, values[lane] as u32)),
                8 => store_all(addresses, mask, |lane, at| span.store64(at, values[lane])),
                1 => store_all(addresses, mask, |lane, at| span.store8(at, values[lane] as u8)),
                _ => store_all(addresses, mask, |lane, at| span.store16(at, values[lane] as u16)),
            };
            left &= !done;
        }
        for lane in lanes(left) {
            self.store_lane(space, lane, addresses[lane], width, values[lane])
                .ok_or_else(|| Trouble::at(FaultKind::IllegalAddress, lane, addresses[lane]))?;
        }
        Ok(())
    }

    /// Checks the alignment of a whole vector, which is stricter than that of its elements.
    pub(super) fn check_vector(&self, addresses: &Row, mask: u32, bytes: u32) -> Result<(), Trouble> {
        Self::check(addresses, mask, u64::from(bytes))
    }

    /// `cp.async`: done at once.
    pub(super) fn copy(
        &mut self,
        to: (Mem, &Row),
        from: (Mem, &Row),
        mask: u32,
        size: u32,
        wanted: Option<&Row>,
    ) -> Result<(), Trouble> {
        Self::check(to.1, mask, u64::from(size))?;
        Self::check(from.1, mask, u64::from(size))?;
        for lane in lanes(mask) {
            let wanted = wanted.map_or(u64::from(size), |row| row[lane] & 0xFFFF_FFFF);
            for offset in 0..u64::from(size) {
                let source = from.1[lane].wrapping_add(offset);
                let value = if offset < wanted {
                    self.load_lane(from.0, lane, source, 1)
                        .ok_or_else(|| Trouble::at(FaultKind::IllegalAddress, lane, source))?
                } else {
                    0
                };
                let target = to.1[lane].wrapping_add(offset);
                self.store_lane(to.0, lane, target, 1, value)
                    .ok_or_else(|| Trouble::at(FaultKind::IllegalAddress, lane, target))?;
            }
        }
        Ok(())
    }

    /// Reads a zero-terminated text of at most `max` bytes.
    pub(super) fn text(&mut self, lane: usize, address: u64, max: usize) -> Result<Vec<u8>, Trouble> {
        let mut out = Vec::new();
        while out.len() < max {
            let at = address.wrapping_add(out.len() as u64);
            let byte = self.byte(lane, at)?;
            if byte == 0 {
                break;
            }
            out.push(byte);
        }
        Ok(out)
    }

    fn byte(&mut self, lane: usize, address: u64) -> Result<u8, Trouble> {
        self.load_lane(Mem::Generic, lane, address, 1)
            .map(|value| value as u8)
            .ok_or_else(|| Trouble::at(FaultKind::IllegalAddress, lane, address))
    }

    /// One value at a generic address.
    pub(super) fn value(&mut self, lane: usize, address: u64, width: u32) -> Result<u64, Trouble> {
        self.load_lane(Mem::Generic, lane, address, width)
            .ok_or_else(|| Trouble::at(FaultKind::IllegalAddress, lane, address))
    }

    /// Reads and replaces a value of local or shared memory, where only this host thread works.
    fn update_private(
        &mut self,
        space: Mem,
        lane: usize,
        address: u64,
        width: u32,
        f: impl Fn(u64) -> Option<u64>,
    ) -> Option<u64> {
        let old = self.load_lane(space, lane, address, width)?;
        if let Some(new) = f(old) {
            self.store_lane(space, lane, address, width, new)?;
        }
        Some(old)
    }

    fn update_device(&mut self, address: u64, width: u32, f: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        match width {
            8 => self.spans.find(address, |span| {
                let mut old = span.load64(address)?;
                loop {
                    let Some(new) = f(old) else {
                        // A failed compare is a read; take it with the strength of an atomic.
                        return span
                            .compare_exchange64(address, old, old)
                            .map(|seen| seen.unwrap_or_else(|now| now));
                    };
                    match span.compare_exchange64(address, old, new)? {
                        Ok(_) => return Some(old),
                        Err(now) => old = now,
                    }
                }
            }),
            4 => self.spans.find(address, |span| {
                let mut old = span.load32(address)?;
                loop {
                    let Some(new) = f(u64::from(old)) else { return Some(u64::from(old)) };
                    match span.compare_exchange32(address, old, new as u32)? {
                        Ok(_) => return Some(u64::from(old)),
                        Err(now) => old = now,
                    }
                }
            }),
            _ => self.spans.find(address, |span| {
                // Two bytes change inside the four that hold them.
                let word = address & !3;
                let shift = (address & 2) * 8;
                let mut whole = span.load32(word)?;
                loop {
                    let old = u64::from(whole >> shift & 0xFFFF);
                    let Some(new) = f(old) else { return Some(old) };
                    let next = whole & !(0xFFFF << shift) | (new as u32 & 0xFFFF) << shift;
                    match span.compare_exchange32(word, whole, next)? {
                        Ok(_) => return Some(old),
                        Err(now) => whole = now,
                    }
                }
            }),
        }
    }

    /// One atomic instruction; returns the old values of each element.
    pub(super) fn atomic(
        &mut self,
        atomic: &Atomic,
        addresses: &Row,
        operands: &[Row],
        expected: Option<&Row>,
        mask: u32,
    ) -> Result<Vec<Row>, Trouble> {
        let width = atomic.width;
        Self::check(addresses, mask, u64::from(width))?;
        let mut out = vec![[0; 32]; operands.len()];
        let space = atomic.address.space;
        let cut = if width == 8 { !0 } else { (1u64 << (width * 8)) - 1 };
        for lane in lanes(mask) {
            for (element, operand) in operands.iter().enumerate() {
                let address = addresses[lane].wrapping_add(element as u64 * u64::from(width));
                let b = operand[lane] & cut;
                let device = space == Mem::Generic && is_device(address);
                let update = |old: u64| match &atomic.kind {
                    AtomicKind::Add32 => Some(u64::from((old as u32).wrapping_add(b as u32))),
                    AtomicKind::Update(f) => Some(f(old, b) & cut),
                    AtomicKind::Compare(_) => expected.is_some_and(|row| row[lane] & cut == old).then_some(b),
                };
                let old = if !device {
                    self.update_private(space, lane, address, width, update)
                } else if matches!(atomic.kind, AtomicKind::Add32) {
                    self.spans.find(address, |span| span.fetch_add32(address, b as u32)).map(u64::from)
                } else {
                    self.update_device(address, width, update)
                };
                out[element][lane] =
                    old.ok_or_else(|| Trouble::at(FaultKind::IllegalAddress, lane, address))?;
            }
        }
        Ok(out)
    }
}

/// Addresses of shared memory have 32 bits, whatever register holds them.
fn shared_offset(address: u64) -> u64 {
    address & 0xFFFF_FFFF
}

/// Loads what `f` answers for; returns the lanes it did.
#[inline]
fn load_all(out: &mut Row, addresses: &Row, mask: u32, f: impl Fn(u64) -> Option<u64>) -> u32 {
    let mut done = 0;
    for lane in lanes(mask) {
        if let Some(value) = f(addresses[lane]) {
            out[lane] = value;
            done |= 1 << lane;
        }
    }
    done
}

/// Stores where `f` answers for the address; returns those lanes.
#[inline]
fn store_all(addresses: &Row, mask: u32, f: impl Fn(usize, u64) -> Option<()>) -> u32 {
    let mut done = 0;
    for lane in lanes(mask) {
        done |= u32::from(f(lane, addresses[lane]).is_some()) << lane;
    }
    done
}

/// Four bytes of shared memory.
#[inline]
fn slice32(bytes: &[u8], address: u64) -> Option<u64> {
    let start = address as u32 as usize;
    let part: [u8; 4] = bytes.get(start..start + 4)?.try_into().ok()?;
    Some(u64::from(u32::from_le_bytes(part)))
}

/// Addresses of an access in all lanes.
#[inline]
pub(super) fn addresses(base: &Row, address: &Address) -> Row {
    base.map(|value| value.wrapping_add(address.offset as u64))
}

/// Whether the old value is used.
pub(super) fn wants_result(d: &[u32]) -> bool {
    d.iter().any(|&row| row != SINK)
}
