//! Bodies of commands.

use super::{Command, Fields, Short};

/// A command with its arguments; bulk stays where it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Agree on a version; `capabilities` is JSON, or empty.
    Version {
        /// Incompatible changes.
        major: u16,
        /// Compatible ones.
        minor: u16,
        /// Without its terminating zero.
        capabilities: &'a [u8],
    },
    /// The device may reach `size` bytes at `address`: they are `offset` bytes into the file that comes along.
    DmaMap {
        /// [`super::dma`] rights.
        flags: u32,
        /// Into the file.
        offset: u64,
        /// As the device says it.
        address: u64,
        /// In bytes.
        size: u64,
    },
    /// It may no longer.
    DmaUnmap {
        /// [`super::dma`] flags.
        flags: u32,
        /// As mapped.
        address: u64,
        /// As mapped.
        size: u64,
    },
    /// Regions and interrupts, please.
    DeviceInfo,
    /// One region, please.
    RegionInfo {
        /// [`super::region`] number.
        index: u32,
    },
    /// One kind of interrupt, please.
    IrqInfo {
        /// [`super::irq`] number.
        index: u32,
    },
    /// Sets, clears or triggers `count` vectors from `start`.
    SetIrqs {
        /// [`super::irq`] data and action.
        flags: u32,
        /// [`super::irq`] number.
        index: u32,
        /// First vector.
        start: u32,
        /// How many.
        count: u32,
        /// One byte a vector, with `DATA_BOOL`.
        data: &'a [u8],
    },
    /// Reads `count` bytes of a region.
    RegionRead {
        /// Into the region.
        offset: u64,
        /// [`super::region`] number.
        region: u32,
        /// In bytes.
        count: u32,
    },
    /// Writes a region.
    RegionWrite {
        /// Into the region.
        offset: u64,
        /// [`super::region`] number.
        region: u32,
        /// What to write.
        data: &'a [u8],
    },
    /// Writes many small things.
    RegionWriteMulti {
        /// In the order they were made.
        writes: SmallWrites<'a>,
    },
    /// The device wants guest memory.
    DmaRead {
        /// Where.
        address: u64,
        /// In bytes.
        count: u64,
    },
    /// The device writes guest memory.
    DmaWrite {
        /// Where.
        address: u64,
        /// What.
        data: &'a [u8],
    },
    /// Reset.
    DeviceReset,
}

/// One write of a [`Request::RegionWriteMulti`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallWrite {
    /// Into the region.
    pub offset: u64,
    /// [`super::region`] number.
    pub region: u32,
    /// In `1..=8`.
    pub bytes: usize,
    /// The first `bytes` of these count.
    pub data: [u8; 8],
}

impl SmallWrite {
    /// What to write.
    pub fn data(&self) -> &[u8] {
        &self.data[..self.bytes]
    }
}

/// Checked records of 24 bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallWrites<'a>(&'a [u8]);

/// offset, region, count, eight bytes of data.
const SMALL_WRITE_BYTES: usize = 24;

impl<'a> SmallWrites<'a> {
    fn check(records: &'a [u8], count: u64) -> Result<Self, RequestError> {
        let expected = count.checked_mul(SMALL_WRITE_BYTES as u64);
        if expected != Some(records.len() as u64) {
            return Err(RequestError::WriteCount { count, have: records.len() });
        }
        let writes = Self(records);
        match writes.iter().find(|write| !(1..=8).contains(&write.bytes)) {
            Some(write) => Err(RequestError::WriteSize { bytes: write.bytes }),
            None => Ok(writes),
        }
    }

    /// The writes, in order.
    pub fn iter(&self) -> impl Iterator<Item = SmallWrite> + 'a {
        self.0.as_chunks::<SMALL_WRITE_BYTES>().0.iter().map(|record| {
            let field = |at: usize| u32::from_ne_bytes(record[at..at + 4].try_into().expect("four bytes"));
            SmallWrite {
                offset: u64::from_ne_bytes(record[0..8].try_into().expect("eight bytes")),
                region: field(8),
                bytes: field(12) as usize,
                data: record[16..24].try_into().expect("eight bytes"),
            }
        })
    }
}

/// Why a body is not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// No command has this number, or it cannot be asked of us.
    #[error("command {number} is not supported")]
    Unsupported {
        /// As sent.
        number: u16,
    },
    /// The body ends too early.
    #[error("the body of {command:?} is only {have} bytes long")]
    Short {
        /// The command of the body.
        command: Command,
        /// Its length.
        have: usize,
    },
    /// A count disagrees with the bytes that came.
    #[error("{command:?} announces {announced} bytes and brings {have}")]
    Length {
        /// The command of the body.
        command: Command,
        /// As sent.
        announced: u64,
        /// As counted.
        have: usize,
    },
    /// The number of small writes disagrees with the bytes that came.
    #[error("{count} writes announced in {have} bytes")]
    WriteCount {
        /// As sent.
        count: u64,
        /// Bytes of records.
        have: usize,
    },
    /// A small write is one to eight bytes.
    #[error("a small write of {bytes} bytes")]
    WriteSize {
        /// As sent.
        bytes: usize,
    },
}

impl<'a> Request<'a> {
    /// Reads the body of a command.
    pub fn decode(number: u16, body: &'a [u8]) -> Result<Self, RequestError> {
        let command = Command::from_number(number).ok_or(RequestError::Unsupported { number })?;
        let short = |Short| RequestError::Short { command, have: body.len() };
        Self::decode_fields(command, Fields(body)).map_err(short)?
    }

    fn decode_fields(command: Command, mut f: Fields<'a>) -> Result<Result<Self, RequestError>, Short> {
        let exact = |announced: u64, data: &'a [u8]| {
            if announced == data.len() as u64 {
                Ok(data)
            } else {
                Err(RequestError::Length { command, announced, have: data.len() })
            }
        };
        // `argsz` stands first in many bodies: how large the sender's structure is. We answer with structures of fixed
        // size and clients send all sorts of values, so it is read and not believed.
        Ok(Ok(match command {
            Command::Version => {
                let (major, minor) = (f.u16()?, f.u16()?);
                let capabilities = f.rest();
                let capabilities = capabilities.strip_suffix(&[0]).unwrap_or(capabilities);
                Request::Version { major, minor, capabilities }
            }
            Command::DmaMap => {
                let _argsz = f.u32()?;
                Request::DmaMap { flags: f.u32()?, offset: f.u64()?, address: f.u64()?, size: f.u64()? }
            }
            Command::DmaUnmap => {
                let _argsz = f.u32()?;
                Request::DmaUnmap { flags: f.u32()?, address: f.u64()?, size: f.u64()? }
            }
            Command::DeviceInfo => {
                let _argsz = f.u32()?;
                Request::DeviceInfo
            }
            Command::RegionInfo => {
                let (_argsz, _flags) = (f.u32()?, f.u32()?);
                Request::RegionInfo { index: f.u32()? }
            }
            Command::IrqInfo => {
                let (_argsz, _flags) = (f.u32()?, f.u32()?);
                Request::IrqInfo { index: f.u32()? }
            }
            Command::SetIrqs => {
                let _argsz = f.u32()?;
                let (flags, index, start, count) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
                Request::SetIrqs { flags, index, start, count, data: f.rest() }
            }
            Command::RegionRead => {
                Request::RegionRead { offset: f.u64()?, region: f.u32()?, count: f.u32()? }
            }
            Command::RegionWrite => {
                let (offset, region, count) = (f.u64()?, f.u32()?, f.u32()?);
                match exact(count.into(), f.rest()) {
                    Ok(data) => Request::RegionWrite { offset, region, data },
                    Err(error) => return Ok(Err(error)),
                }
            }
            Command::RegionWriteMulti => {
                let count = f.u64()?;
                return Ok(
                    SmallWrites::check(f.rest(), count).map(|writes| Request::RegionWriteMulti { writes })
                );
            }
            Command::DmaRead => Request::DmaRead { address: f.u64()?, count: f.u64()? },
            Command::DmaWrite => {
                let (address, count) = (f.u64()?, f.u64()?);
                match exact(count, f.rest()) {
                    Ok(data) => Request::DmaWrite { address, data },
                    Err(error) => return Ok(Err(error)),
                }
            }
            Command::DeviceReset => Request::DeviceReset,
            Command::RegionIoFds | Command::DirtyPages => {
                return Ok(Err(RequestError::Unsupported { number: command as u16 }));
            }
        }))
    }

    /// Which command it is.
    pub fn command(&self) -> Command {
        match self {
            Request::Version { .. } => Command::Version,
            Request::DmaMap { .. } => Command::DmaMap,
            Request::DmaUnmap { .. } => Command::DmaUnmap,
            Request::DeviceInfo => Command::DeviceInfo,
            Request::RegionInfo { .. } => Command::RegionInfo,
            Request::IrqInfo { .. } => Command::IrqInfo,
            Request::SetIrqs { .. } => Command::SetIrqs,
            Request::RegionRead { .. } => Command::RegionRead,
            Request::RegionWrite { .. } => Command::RegionWrite,
            Request::RegionWriteMulti { .. } => Command::RegionWriteMulti,
            Request::DmaRead { .. } => Command::DmaRead,
            Request::DmaWrite { .. } => Command::DmaWrite,
            Request::DeviceReset => Command::DeviceReset,
        }
    }

    /// The body.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(64);
        let mut u32s = |values: &[u32]| values.iter().for_each(|v| body.extend(v.to_ne_bytes()));
        match *self {
            Request::Version { major, minor, capabilities } => {
                body.extend(major.to_ne_bytes());
                body.extend(minor.to_ne_bytes());
                body.extend(capabilities);
                body.push(0);
            }
            Request::DmaMap { flags, offset, address, size } => {
                u32s(&[32, flags]);
                [offset, address, size].iter().for_each(|v| body.extend(v.to_ne_bytes()));
            }
            Request::DmaUnmap { flags, address, size } => {
                u32s(&[24, flags]);
                [address, size].iter().for_each(|v| body.extend(v.to_ne_bytes()));
            }
            Request::DeviceInfo => u32s(&[16, 0, 0, 0]),
            Request::RegionInfo { index } => u32s(&[32, 0, index, 0, 0, 0, 0, 0]),
            Request::IrqInfo { index } => u32s(&[16, 0, index, 0]),
            Request::SetIrqs { flags, index, start, count, data } => {
                u32s(&[20 + data.len() as u32, flags, index, start, count]);
                body.extend(data);
            }
            Request::RegionRead { offset, region, count } => {
                body.extend(offset.to_ne_bytes());
                [region, count].iter().for_each(|v| body.extend(v.to_ne_bytes()));
            }
            Request::RegionWrite { offset, region, data } => {
                body.extend(offset.to_ne_bytes());
                [region, data.len() as u32].iter().for_each(|v| body.extend(v.to_ne_bytes()));
                body.extend(data);
            }
            Request::RegionWriteMulti { writes } => {
                body.extend(((writes.0.len() / SMALL_WRITE_BYTES) as u64).to_ne_bytes());
                body.extend(writes.0);
            }
            Request::DmaRead { address, count } => {
                [address, count].iter().for_each(|v| body.extend(v.to_ne_bytes()));
            }
            Request::DmaWrite { address, data } => {
                [address, data.len() as u64].iter().for_each(|v| body.extend(v.to_ne_bytes()));
                body.extend(data);
            }
            Request::DeviceReset => {}
        }
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(request: Request<'_>) {
        let body = request.encode();
        assert_eq!(Request::decode(request.command() as u16, &body), Ok(request));
        for cut in 0..body.len() {
            // Never more than what came; whether a prefix is an error depends on the command.
            let _ = Request::decode(request.command() as u16, &body[..cut]);
        }
    }

    #[test]
    fn every_request_survives_its_bytes() {
        check(Request::Version { major: 0, minor: 1, capabilities: b"{}" });
        check(Request::DmaMap { flags: 3, offset: 4096, address: 1 << 40, size: 8192 });
        check(Request::DmaUnmap { flags: 4, address: 0, size: 0 });
        check(Request::DeviceInfo);
        check(Request::RegionInfo { index: 7 });
        check(Request::IrqInfo { index: 1 });
        check(Request::SetIrqs { flags: 0x24, index: 1, start: 0, count: 4, data: &[] });
        check(Request::RegionRead { offset: 16, region: 0, count: 4 });
        check(Request::RegionWrite { offset: 16, region: 0, data: &[1, 2, 3, 4] });
        check(Request::DmaRead { address: 0x1000, count: 64 });
        check(Request::DmaWrite { address: 0x1000, data: &[9; 64] });
        check(Request::DeviceReset);
        let mut records = Vec::new();
        for (offset, bytes) in [(0u64, 4u32), (8, 8), (100, 1)] {
            records.extend(offset.to_ne_bytes());
            records.extend(0u32.to_ne_bytes());
            records.extend(bytes.to_ne_bytes());
            records.extend([0xab; 8]);
        }
        check(Request::RegionWriteMulti { writes: SmallWrites::check(&records, 3).unwrap() });
        assert!(SmallWrites::check(&records, 4).is_err());
        assert!(SmallWrites::check(&records, u64::MAX).is_err());
        records[12] = 9;
        assert_eq!(SmallWrites::check(&records, 3), Err(RequestError::WriteSize { bytes: 9 }));
    }

    #[test]
    fn a_write_brings_exactly_what_it_announces() {
        let mut body = Request::RegionWrite { offset: 0, region: 0, data: &[1, 2, 3, 4] }.encode();
        body.push(5);
        assert!(matches!(
            Request::decode(10, &body),
            Err(RequestError::Length { announced: 4, have: 5, .. })
        ));
    }

    proptest! {
        #[test]
        fn decoding_never_panics_and_what_decodes_encodes_to_its_meaning(
            number in 0u16..20, body in proptest::collection::vec(any::<u8>(), 0..120)
        ) {
            if let Ok(request) = Request::decode(number, &body) {
                let again = request.encode();
                prop_assert_eq!(Request::decode(number, &again), Ok(request));
            }
        }
    }
}
