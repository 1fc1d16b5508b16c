//! How much text of the device the program's standard output got, and which.

use crate::digest::{Digest, Digester};

/// Text since some cut.
#[derive(Clone, Debug, Default)]
pub(crate) struct Printed {
    pub(crate) bytes: u64,
    digester: Digester,
}

impl Printed {
    pub(crate) fn add(&mut self, text: &[u8]) {
        self.bytes += text.len() as u64;
        self.digester.update(text);
    }

    pub(crate) fn digest(&self) -> Digest {
        self.digester.finish()
    }
}
