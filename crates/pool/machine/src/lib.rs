//! What the processes of `dxpu` need of the machine they run on: private files, its name, this start of it, randomness.

#![forbid(unsafe_code)]

pub mod files;

use std::io::Read;

/// Begins the entry by which a box says, among the ways to its worker, on which machine its sockets are. [`boot_id`]
/// follows.
pub const BOOT_PREFIX: &str = "boot:";

/// This start of this machine; no other machine has the same.
pub fn boot_id() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned()).filter(|boot| !boot.is_empty())
}

/// The name of this machine, or `localhost` if it has none.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".to_owned() } else { name.trim().to_owned() }
}

/// Random bytes of the kernel, as hex digits.
pub fn random_hex(bytes: usize) -> Result<String, NoRandomness> {
    let mut random = vec![0; bytes];
    std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The kernel gives no random bytes.
#[derive(Debug, thiserror::Error)]
#[error("no randomness")]
pub struct NoRandomness(#[from] std::io::Error);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_are_two_digits_each_and_never_the_same() {
        let (one, other) = (random_hex(16).unwrap(), random_hex(16).unwrap());
        assert_eq!(one.len(), 32);
        assert!(one.chars().all(|digit| digit.is_ascii_hexdigit()), "{one}");
        assert_ne!(one, other);
    }
}
