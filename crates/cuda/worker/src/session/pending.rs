//! What a reply waits for.

use cuda_abi::CuResult;
use cuda_driver::{Driver, PendingRead, WaitTarget};
use cuda_wire::{Bytes, Wire};

pub(crate) enum Pending {
    /// That work is done.
    Target(WaitTarget),
    /// Bytes of the device, which are the answer.
    Read(Box<dyn PendingRead>),
}

impl Pending {
    /// The result, its answer appended to `answer`; `None`: not yet.
    pub(crate) fn poll(&mut self, driver: &dyn Driver, answer: &mut Vec<u8>) -> Option<CuResult<()>> {
        let is_over = match self {
            Self::Target(target) => driver.poll(*target),
            Self::Read(read) => {
                let mut bytes = Vec::new();
                read.poll(&mut bytes).inspect(|is_over| {
                    if *is_over {
                        Bytes(&bytes).put(answer);
                    }
                })
            }
        };
        match is_over {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(error) => Some(Err(error)),
        }
    }

    /// The same, but waits for it.
    pub(crate) fn wait(self, driver: &dyn Driver, answer: &mut Vec<u8>) -> CuResult<()> {
        match self {
            Self::Target(target) => driver.wait(target),
            Self::Read(read) => {
                let mut bytes = Vec::new();
                read.wait(&mut bytes)?;
                Bytes(&bytes).put(answer);
                Ok(())
            }
        }
    }
}
