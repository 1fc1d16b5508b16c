//! 128-bit digests of what the program observed.

use cuda_wire::{ModuleInfo, VariableInfo, Wire};

/// The first 128 bits of a blake3 hash. Two different observations have the same digest with a chance of 2^-64 even if a
/// program tries to make such a pair, and the program would only deceive itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digest([u8; 16]);

impl From<u128> for Digest {
    /// A digest that the client made in its own way, of bytes that come in any order.
    fn from(bits: u128) -> Self {
        Self(bits.to_le_bytes())
    }
}

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let mut digester = Digester::default();
        digester.update(bytes);
        digester.finish()
    }

    /// The digest of a reply's body. Most replies have none: those cost nothing.
    pub fn of_body(body: &[u8]) -> Self {
        if body.is_empty() { Self([0; 16]) } else { Self::of(body) }
    }

    /// The digest of a module's description without what may differ on another worker: the addresses of its variables
    /// and the compiler's log, which can hold times. The variables come back beside it.
    pub(crate) fn of_module(body: &[u8]) -> (Self, Vec<VariableInfo>) {
        let Ok(mut info) = ModuleInfo::from_bytes(body) else { return (Self::of_body(body), Vec::new()) };
        let variables = info.variables.clone();
        info.variables.iter_mut().for_each(|variable| variable.address = 0);
        info.info_log.clear();
        (Self::of(&info.to_bytes()), variables)
    }
}

/// A digest of bytes that come in pieces, in order.
#[derive(Clone, Debug, Default)]
pub struct Digester(blake3::Hasher);

impl Digester {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes so far.
    pub fn finish(&self) -> Digest {
        let mut digest = [0; 16];
        digest.copy_from_slice(&self.0.finalize().as_bytes()[..16]);
        Digest(digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(address: u64, bytes: u64, info_log: &str) -> Vec<u8> {
        let variables = vec![VariableInfo { name: "v".to_owned(), address, bytes }];
        ModuleInfo { kernels: vec![], variables, info_log: info_log.to_owned(), managed: Default::default() }
            .to_bytes()
    }

    #[test]
    fn a_moved_variable_and_a_log_do_not_count_and_its_size_does() {
        let (digest, variables) = Digest::of_module(&info(0x1000, 8, "took 3 ms"));
        assert_eq!(variables[0].address, 0x1000);
        assert_eq!(Digest::of_module(&info(0x2000, 8, "took 4 ms")).0, digest);
        assert_ne!(Digest::of_module(&info(0x1000, 16, "took 3 ms")).0, digest);
    }

    #[test]
    fn pieces_make_the_digest_of_the_whole() {
        let mut digester = Digester::default();
        digester.update(b"ab");
        digester.update(b"c");
        assert_eq!(digester.finish(), Digest::of(b"abc"));
        assert_ne!(Digest::of(b"abc"), Digest::of(b"abd"));
    }
}
