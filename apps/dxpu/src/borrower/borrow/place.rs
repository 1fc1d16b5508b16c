//! The directory with the tokens of a lease, for as long as `dxpu run` lives.
//!
//! ```text
//! TEMP/dxpu-lease-PID.STARTED.NAMESPACE.BOOT-random
//! ```
//!
//! It is removed at the end, however that comes, except by SIGKILL or a power cut. So its name has the process in it,
//! and the next `dxpu run` of the same user removes those whose process is gone.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

const PREFIX: &str = "dxpu-lease-";
/// A directory from before this machine was started: no lease of it lives, but another machine may share the folder.
const FOREIGN_GONE_AFTER: Duration = Duration::from_secs(24 * 3600);

/// A process, identified so that a later one with its number is not taken for it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owner {
    pid: u32,
    /// In the kernel's ticks since the machine was started.
    started: u64,
    /// Where its number counts: containers have their own.
    namespace: u64,
    boot: String,
}

impl Owner {
    fn this() -> Option<Self> {
        let pid = std::process::id();
        let namespace = std::fs::metadata("/proc/self/ns/pid").ok()?.ino();
        let boot = machine::boot_id()?.chars().filter(char::is_ascii_hexdigit).take(12).collect();
        Some(Self { pid, started: started(pid)?, namespace, boot })
    }

    fn name(&self) -> String {
        format!("{PREFIX}{}.{}.{}.{}-", self.pid, self.started, self.namespace, self.boot)
    }

    fn of(name: &str) -> Option<Self> {
        let (owner, _random) = name.strip_prefix(PREFIX)?.split_once('-')?;
        let mut parts = owner.split('.');
        let owner = Self {
            pid: parts.next()?.parse().ok()?,
            started: parts.next()?.parse().ok()?,
            namespace: parts.next()?.parse().ok()?,
            boot: parts.next()?.to_owned(),
        };
        parts.next().is_none().then_some(owner)
    }

    /// Whether what belongs to it may be removed. `started` says when the process of a number was started, if there is one;
    /// `age` is the time since the thing was last changed.
    fn is_gone(&self, this: &Self, started: impl Fn(u32) -> Option<u64>, age: Duration) -> bool {
        if self.boot != this.boot {
            return age >= FOREIGN_GONE_AFTER;
        }
        self.namespace == this.namespace && started(self.pid) != Some(self.started)
    }
}

/// When a process was started.
fn started(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// A new directory for the tokens of a lease. Those of processes that are gone are removed.
pub(super) fn make() -> std::io::Result<tempfile::TempDir> {
    let this = Owner::this();
    if let Some(this) = &this {
        sweep(&std::env::temp_dir(), this);
    }
    let prefix = this.map_or_else(|| PREFIX.to_owned(), |this| this.name());
    tempfile::Builder::new().prefix(&prefix).tempdir()
}

fn sweep(folder: &Path, this: &Owner) {
    let own_user = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Some(owner) = entry.file_name().to_str().and_then(Owner::of) else { continue };
        // Does not follow links: a link is nothing of ours.
        let Ok(metadata) = entry.metadata() else { continue };
        let changed = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let age = SystemTime::now().duration_since(changed).unwrap_or_default();
        if metadata.is_dir() && metadata.uid() == own_user && owner.is_gone(this, started, age) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_processes_that_are_gone_are_removed_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let this = Owner::this().unwrap();
        assert_eq!(Owner::of(&format!("{}Xy12z", this.name())), Some(this.clone()));
        let gone = Owner { started: this.started + 1, ..this.clone() };
        let elsewhere = Owner { namespace: this.namespace + 1, ..gone.clone() };
        let before_restart = Owner { boot: "000000000000".to_owned(), ..gone.clone() };
        let names = [
            format!("{}a", this.name()),
            format!("{}b", gone.name()),
            format!("{}c", elsewhere.name()),
            format!("{}d", before_restart.name()),
            "dxpu-lease-old1".to_owned(),
            "somebody's".to_owned(),
        ];
        for name in &names {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join("tokens"), "secret").unwrap();
        }
        sweep(folder.path(), &this);
        let left: Vec<bool> = names.iter().map(|name| folder.path().join(name).exists()).collect();
        assert_eq!(left, [true, false, true, true, true, true]);
        let none = |_| None;
        assert!(before_restart.is_gone(&this, none, FOREIGN_GONE_AFTER));
        assert!(!elsewhere.is_gone(&this, none, FOREIGN_GONE_AFTER));
    }
}
