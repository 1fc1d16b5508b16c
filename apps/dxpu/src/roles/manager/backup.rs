//! `dxpu manager backup` and `dxpu manager restore`.

use super::{Place, StoreOption};
use crate::operate::words::{counted, time};
use crate::support::exit::{Exit, Failure, Outcome};
use anyhow::Context;
use pool_manager::{Backup as Copy, BackupError, Done, RestoreError};
use std::fs;
use std::io::{self, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

const BACKUP_EXAMPLES: &str = "\
Examples:
  dxpu manager backup --out /var/backups/dxpu/pool-$(date +%F).backup
  dxpu manager backup --store etcd:http://e1:2379,http://e2:2379 --out pool.backup

Managers may run meanwhile: the file holds the store as it was at one moment. It holds the pool's keys too, so only its
owner can read it; keep it as you keep a private key. docs/upgrade.md says when to make one.";

const RESTORE_EXAMPLES: &str = "\
Examples:
  dxpu manager restore --from pool.backup                      into an empty store
  dxpu manager restore --from pool.backup --replace            in place of what the store has

Stop all managers first; boxes, hosts and programs may go on. A program goes on if the backup knows its lease and its box
serves it. A lease from after the backup is ended before its GPU is lent again.";

#[derive(clap::Args)]
#[command(after_help = BACKUP_EXAMPLES)]
pub(super) struct Backup {
    #[command(flatten)]
    place: Place,
    /// Where the copy is written, for its owner alone; a file that is there is replaced when the new one is whole
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

#[derive(clap::Args)]
#[command(after_help = RESTORE_EXAMPLES)]
pub(super) struct Restore {
    #[command(flatten)]
    place: Place,
    /// The file that `dxpu manager backup` wrote
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// Delete what the store has now
    #[arg(long)]
    replace: bool,
}

impl Backup {
    pub(super) fn run(self) -> Outcome {
        self.place.expect_store()?;
        let store = self.place.open()?;
        let unfinished = self.out.with_extension("unfinished");
        let make = || -> io::Result<BufWriter<fs::File>> {
            let _ = fs::remove_file(&unfinished);
            let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
            Ok(BufWriter::new(file))
        };
        let now_ms = pool_manager::Clock::start().now_ms();
        let taken = pool_manager::take(&*store, now_ms, make);
        let (taken, file) = taken.map_err(|error| {
            let _ = fs::remove_file(&unfinished);
            backup_failure(error)
        })?;
        let finish = || -> io::Result<()> {
            file.get_ref().sync_all()?;
            fs::rename(&unfinished, &self.out)
        };
        finish().with_context(|| format!("cannot write {}", self.out.display()))?;
        outln!(
            "wrote {} ({}, revision {}); it holds the pool's keys: keep it where only admins can read",
            self.out.display(),
            counted(taken.records, "record"),
            taken.revision
        );
        Ok(Exit::Success)
    }
}

impl Restore {
    pub(super) fn run(self) -> Outcome {
        let bytes = fs::read(&self.from).with_context(|| format!("cannot read {}", self.from.display()))?;
        let copy = Copy::read(&bytes).map_err(backup_failure)?;
        drop(bytes);
        let store = self.place.open()?;
        let now_ms = pool_manager::Clock::start().now_ms();
        let done = pool_manager::restore(&*store, &copy, self.replace, now_ms).map_err(restore_failure)?;
        out!("{}", told(&copy, &done));
        Ok(Exit::Success)
    }
}

fn told(copy: &Copy, done: &Done) -> String {
    let pool = &done.pool;
    let count = |number: usize, one: &str| counted(number as u64, one);
    let at = time(copy.at_ms);
    let mut text = format!(
        "restored the pool as it was at {at} (dxpu {}, revision {}): {}, {}, {}, {}, {}, {}, {}\n",
        copy.made_by,
        copy.revision,
        count(pool.boxes, "box"),
        count(pool.hosts, "host"),
        count(pool.gpus, "GPU"),
        count(pool.leases, "live lease"),
        count(pool.tenants, "tenant"),
        count(done.tokens, "token"),
        match done.audit_entries {
            1 => "1 audit entry".to_owned(),
            count => format!("{count} audit entries"),
        },
    );
    text += &format!(
        "grants get epochs above {} from now on, so no GPU has two holders\n\nwhat to do next:\n",
        pool.epoch_floor
    );
    text += &format!(
        "  1. start the managers; boxes and hosts report to them, and leases from after {at} are ended\n  \
           2. revoke again what was revoked after {at}: those tokens and machines are good again\n  \
           3. make new tokens for people and machines that got theirs after {at}; such boxes and hosts join again\n  \
           4. set again what admins changed after {at} (tenants, spares, cordons), and look at `dxpu doctor`\n"
    );
    if done.join_tokens_dropped > 0 {
        text += &format!(
            "\n{} that had not been used at {at} open nothing any more, since they may have been used later: \
             make new ones with `dxpu token create`\n",
            count(done.join_tokens_dropped, "join token")
        );
    }
    text
}

fn backup_failure(error: BackupError) -> Failure {
    let (exit, hint) = match &error {
        BackupError::Store(_) => (Exit::Failure, "check that the store can be reached (--store)"),
        BackupError::Write(_) => (Exit::Failure, "check the path of --out, and the room on its disk"),
        BackupError::NoPool => (Exit::Usage, "name the store of your managers with --store or --state-dir"),
        BackupError::Unfinished => (Exit::Failure, "finish the restore first"),
        BackupError::Newer { .. } => (Exit::Unsupported, "upgrade dxpu on this machine"),
        BackupError::Damaged { .. } => (Exit::Failure, "use another copy of the file, or an older backup"),
    };
    Failure::new(exit, "there is no whole backup", hint).because(error)
}

fn restore_failure(error: RestoreError) -> Failure {
    let (exit, hint) = match &error {
        RestoreError::Store(_) => (
            Exit::Failure,
            "check that the store can be reached and written to, then run this again with --replace",
        ),
        RestoreError::NotEmpty { .. } => (
            Exit::Refused,
            "name an empty store, or say --replace to delete what is there (make a backup of it first)",
        ),
        RestoreError::Led { .. } => {
            (Exit::Refused, "stop all managers first (systemctl stop dxpu-manager); programs go on meanwhile")
        }
        RestoreError::Restoring => {
            (Exit::Refused, "wait until it has ended, then run this again with --replace")
        }
        RestoreError::Record(_) => (Exit::Failure, "use the dxpu that made the backup, or another backup"),
        RestoreError::Interrupted => (Exit::Failure, "stop all managers, then run this again with --replace"),
    };
    Failure::new(exit, "the backup was not restored", hint).because(error)
}

impl Place {
    /// Refuses a file that is not there, which opening would make.
    fn expect_store(&self) -> anyhow::Result<()> {
        let default = || self.directory().map(|directory| directory.join("pool.db"));
        let path = match &self.store {
            Some(StoreOption::Etcd(_)) => return Ok(()),
            Some(StoreOption::Sqlite(path)) => path.clone(),
            None => default()?,
        };
        if path.exists() {
            return Ok(());
        }
        let what = format!("there is no store at {}", path.display());
        let hint = "name the store of your managers with --store or --state-dir";
        Err(Failure::new(Exit::Usage, what, hint).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restore_says_what_it_did_and_what_to_do() {
        let pool = pool::Restored {
            record: Vec::new(),
            epoch_floor: 1_048_600,
            boxes: 1,
            hosts: 0,
            gpus: 2,
            leases: 1,
            tenants: 0,
        };
        let done = Done { pool, records: 40, tokens: 2, join_tokens_dropped: 1, audit_entries: 1 };
        let copy =
            Copy { made_by: "0.1.0".into(), at_ms: 1_794_735_191_000, revision: 77, records: Vec::new() };
        let said = told(&copy, &done);
        assert!(said.starts_with(
            "restored the pool as it was at 2026-11-15 09:33:11Z (dxpu 0.1.0, revision 77): 1 box, 0 hosts, 2 GPUs, \
             1 live lease, 0 tenants, 2 tokens, 1 audit entry\n"
        ), "{said}");
        assert!(said.contains("  2. revoke again what was revoked after 2026-11-15 09:33:11Z"), "{said}");
        assert!(said.contains("1 join token that had not been used"), "{said}");
    }
}
