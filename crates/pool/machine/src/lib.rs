//! What the processes of `dxpu` need of the machine they run on: private files, its name, this start of it, randomness.

#![forbid(unsafe_code)]

pub mod files;

use std::os::unix::process::CommandExt;
use std::process::Command;

/// The file that this process executes, also when an upgrade has put another one at its path.
pub const THIS_PROGRAM: &str = "/proc/self/exe";

/// Starts this very program again: a process and the ones it starts are of one version, although an upgrade replaced the file
/// meanwhile.
pub fn this_program() -> Command {
    let mut command = Command::new(THIS_PROGRAM);
    command.arg0(std::env::args_os().next().unwrap_or_else(|| "dxpu".into()));
    command
}

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
    getrandom::fill(&mut random).map_err(std::io::Error::from)?;
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
    fn a_program_starts_itself_although_its_file_was_replaced() {
        const MARK: &str = "MACHINE_TEST_STARTS_ITSELF";
        const TEST: &str = "tests::a_program_starts_itself_although_its_file_was_replaced";
        let run = |mut command: Command, step: &str| {
            command.args([TEST, "--exact", "--nocapture"]).env(MARK, step).output().unwrap()
        };
        match std::env::var(MARK).as_deref() {
            // A copy of this test runs: its file goes away, then it starts itself.
            Ok("copy") => {
                std::fs::remove_file(std::env::current_exe().unwrap()).unwrap();
                let output = run(this_program(), "again");
                assert!(output.status.success(), "{output:?}");
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                println!("{said}");
            }
            Ok(_) => println!("started again"),
            Err(_) => {
                let directory = tempfile::tempdir().unwrap();
                let copy = directory.path().join("copy");
                std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
                let output = run(Command::new(&copy), "copy");
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(output.status.success() && said.contains("started again"), "{output:?}");
                assert!(!copy.exists());
            }
        }
    }

    #[test]
    fn random_bytes_are_two_digits_each_and_never_the_same() {
        let (one, other) = (random_hex(16).unwrap(), random_hex(16).unwrap());
        assert_eq!(one.len(), 32);
        assert!(one.chars().all(|digit| digit.is_ascii_hexdigit()), "{one}");
        assert_ne!(one, other);
    }
}
