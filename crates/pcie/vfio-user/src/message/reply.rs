//! Bodies of successful replies. A failed command's reply is a header and nothing else.

use super::{Command, Fields, Short};

/// What a device is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// It can be reset.
    pub resettable: bool,
    /// Nine, for PCI.
    pub regions: u32,
    /// Five, for PCI.
    pub irqs: u32,
}

/// One region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    /// [`super::region`] flags.
    pub flags: u32,
    /// [`super::region`] number.
    pub index: u32,
    /// Zero where there is none.
    pub size: u64,
}

/// One kind of interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IrqInfo {
    /// [`super::irq`] flags.
    pub flags: u32,
    /// [`super::irq`] number.
    pub index: u32,
    /// Vectors; zero where there is none.
    pub count: u32,
}

const DEVICE_FLAG_RESET: u32 = 1;
const DEVICE_FLAG_PCI: u32 = 2;

/// A reply with its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The version both ends will speak.
    Version {
        /// Incompatible changes.
        major: u16,
        /// Compatible ones.
        minor: u16,
        /// JSON without its terminating zero.
        capabilities: &'a [u8],
    },
    /// Done: DMA_MAP, SET_IRQS, DEVICE_RESET, REGION_WRITE_MULTI have nothing to add.
    Done(Command),
    /// Unmapped: the request, repeated.
    DmaUnmap {
        /// As requested.
        flags: u32,
        /// As requested.
        address: u64,
        /// As requested.
        size: u64,
    },
    /// Regions and interrupts.
    DeviceInfo(DeviceInfo),
    /// A region.
    RegionInfo(RegionInfo),
    /// A kind of interrupt.
    IrqInfo(IrqInfo),
    /// What was read.
    RegionRead {
        /// As requested.
        offset: u64,
        /// As requested.
        region: u32,
        /// All of it.
        data: &'a [u8],
    },
    /// Written.
    RegionWrite {
        /// As requested.
        offset: u64,
        /// As requested.
        region: u32,
        /// How much.
        count: u32,
    },
    /// Guest memory.
    DmaRead {
        /// As requested.
        address: u64,
        /// All of it.
        data: &'a [u8],
    },
    /// Guest memory was written.
    DmaWrite {
        /// As requested.
        address: u64,
        /// How much.
        count: u64,
    },
}

/// Why a body is not a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// Nothing we would ask has this number.
    #[error("a reply to command {number}, which nobody sends")]
    Unsupported {
        /// As sent.
        number: u16,
    },
    /// The body ends too early.
    #[error("the reply to {command:?} is only {have} bytes long")]
    Short {
        /// The command of the body.
        command: Command,
        /// Its length.
        have: usize,
    },
    /// A count disagrees with the bytes that came.
    #[error("the reply to {command:?} announces {announced} bytes and brings {have}")]
    Length {
        /// The command of the body.
        command: Command,
        /// As sent.
        announced: u64,
        /// As counted.
        have: usize,
    },
    /// The device is no PCI device.
    #[error("not a PCI device")]
    NotPci,
}

impl<'a> Reply<'a> {
    /// Reads the body of a successful reply.
    pub fn decode(number: u16, body: &'a [u8]) -> Result<Self, ReplyError> {
        let command = Command::from_number(number).ok_or(ReplyError::Unsupported { number })?;
        Self::decode_fields(command, Fields(body))
            .map_err(|Short| ReplyError::Short { command, have: body.len() })?
    }

    fn decode_fields(command: Command, mut f: Fields<'a>) -> Result<Result<Self, ReplyError>, Short> {
        let data = |announced: u64, data: &'a [u8]| match announced == data.len() as u64 {
            true => Ok(data),
            false => Err(ReplyError::Length { command, announced, have: data.len() }),
        };
        Ok(match command {
            Command::Version => {
                let (major, minor) = (f.u16()?, f.u16()?);
                let capabilities = f.rest();
                let capabilities = capabilities.strip_suffix(&[0]).unwrap_or(capabilities);
                Ok(Reply::Version { major, minor, capabilities })
            }
            Command::DmaMap | Command::SetIrqs | Command::DeviceReset | Command::RegionWriteMulti => {
                Ok(Reply::Done(command))
            }
            Command::DmaUnmap => {
                let _argsz = f.u32()?;
                Ok(Reply::DmaUnmap { flags: f.u32()?, address: f.u64()?, size: f.u64()? })
            }
            Command::DeviceInfo => {
                let _argsz = f.u32()?;
                let (flags, regions, irqs) = (f.u32()?, f.u32()?, f.u32()?);
                let resettable = flags & DEVICE_FLAG_RESET != 0;
                match flags & DEVICE_FLAG_PCI {
                    0 => Err(ReplyError::NotPci),
                    _ => Ok(Reply::DeviceInfo(DeviceInfo { resettable, regions, irqs })),
                }
            }
            Command::RegionInfo => {
                let _argsz = f.u32()?;
                let (flags, index, _capabilities) = (f.u32()?, f.u32()?, f.u32()?);
                Ok(Reply::RegionInfo(RegionInfo { flags, index, size: f.u64()? }))
            }
            Command::IrqInfo => {
                let _argsz = f.u32()?;
                Ok(Reply::IrqInfo(IrqInfo { flags: f.u32()?, index: f.u32()?, count: f.u32()? }))
            }
            Command::RegionRead => {
                let (offset, region, count) = (f.u64()?, f.u32()?, f.u32()?);
                data(count.into(), f.rest()).map(|data| Reply::RegionRead { offset, region, data })
            }
            Command::RegionWrite => {
                Ok(Reply::RegionWrite { offset: f.u64()?, region: f.u32()?, count: f.u32()? })
            }
            Command::DmaRead => {
                let (address, count) = (f.u64()?, f.u64()?);
                data(count, f.rest()).map(|data| Reply::DmaRead { address, data })
            }
            Command::DmaWrite => Ok(Reply::DmaWrite { address: f.u64()?, count: f.u64()? }),
            Command::RegionIoFds | Command::DirtyPages => {
                Err(ReplyError::Unsupported { number: command as u16 })
            }
        })
    }

    /// Which command it answers.
    pub fn command(&self) -> Command {
        match self {
            Reply::Version { .. } => Command::Version,
            Reply::Done(command) => *command,
            Reply::DmaUnmap { .. } => Command::DmaUnmap,
            Reply::DeviceInfo(_) => Command::DeviceInfo,
            Reply::RegionInfo(_) => Command::RegionInfo,
            Reply::IrqInfo(_) => Command::IrqInfo,
            Reply::RegionRead { .. } => Command::RegionRead,
            Reply::RegionWrite { .. } => Command::RegionWrite,
            Reply::DmaRead { .. } => Command::DmaRead,
            Reply::DmaWrite { .. } => Command::DmaWrite,
        }
    }

    /// The body.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(40);
        let mut u32s = |values: &[u32]| values.iter().for_each(|v| body.extend(v.to_ne_bytes()));
        match *self {
            Reply::Version { major, minor, capabilities } => {
                body.extend(major.to_ne_bytes());
                body.extend(minor.to_ne_bytes());
                body.extend(capabilities);
                body.push(0);
            }
            Reply::Done(_) => {}
            Reply::DmaUnmap { flags, address, size } => {
                u32s(&[24, flags]);
                [address, size].iter().for_each(|v| body.extend(v.to_ne_bytes()));
            }
            Reply::DeviceInfo(info) => {
                let reset = if info.resettable { DEVICE_FLAG_RESET } else { 0 };
                u32s(&[16, DEVICE_FLAG_PCI | reset, info.regions, info.irqs]);
            }
            Reply::RegionInfo(info) => {
                // No capability chain and no offset for mmap: registers are only reached by message.
                u32s(&[32, info.flags, info.index, 0]);
                [info.size, 0].iter().for_each(|v| body.extend(v.to_ne_bytes()));
            }
            Reply::IrqInfo(info) => u32s(&[16, info.flags, info.index, info.count]),
            Reply::RegionRead { offset, region, data } => {
                body.extend(offset.to_ne_bytes());
                [region, data.len() as u32].iter().for_each(|v| body.extend(v.to_ne_bytes()));
                body.extend(data);
            }
            Reply::RegionWrite { offset, region, count } => {
                body.extend(offset.to_ne_bytes());
                [region, count].iter().for_each(|v| body.extend(v.to_ne_bytes()));
            }
            Reply::DmaRead { address, data } => {
                [address, data.len() as u64].iter().for_each(|v| body.extend(v.to_ne_bytes()));
                body.extend(data);
            }
            Reply::DmaWrite { address, count } => {
                [address, count].iter().for_each(|v| body.extend(v.to_ne_bytes()));
            }
        }
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_reply_survives_its_bytes() {
        for reply in [
            Reply::Version { major: 0, minor: 0, capabilities: b"{}" },
            Reply::Done(Command::DmaMap),
            Reply::Done(Command::SetIrqs),
            Reply::DmaUnmap { flags: 0, address: 4096, size: 8192 },
            Reply::DeviceInfo(DeviceInfo { resettable: true, regions: 9, irqs: 5 }),
            Reply::RegionInfo(RegionInfo { flags: 3, index: 7, size: 4096 }),
            Reply::IrqInfo(IrqInfo { flags: 9, index: 1, count: 32 }),
            Reply::RegionRead { offset: 4, region: 7, data: &[1, 2, 3, 4] },
            Reply::RegionWrite { offset: 4, region: 7, count: 4 },
            Reply::DmaRead { address: 4096, data: &[5; 16] },
            Reply::DmaWrite { address: 4096, count: 16 },
        ] {
            let body = reply.encode();
            assert_eq!(Reply::decode(reply.command() as u16, &body), Ok(reply));
        }
    }

    proptest! {
        #[test]
        fn decoding_never_panics(
            number in 0u16..20, body in proptest::collection::vec(any::<u8>(), 0..120)
        ) {
            if let Ok(reply) = Reply::decode(number, &body) {
                let again = reply.encode();
                prop_assert_eq!(Reply::decode(number, &again), Ok(reply));
            }
        }
    }
}
