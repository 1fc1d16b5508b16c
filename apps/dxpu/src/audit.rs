//! `dxpu audit`: who did what in the pool.

use crate::exit::{Exit, Failure, Outcome};
use crate::pool_access::{self, PoolAccess};
use pool_api::{AuditEntry, AuditOutcome, Page};
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Audit {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// List the audit trail
    Ls(Ls),
    /// Check that no entry of the audit trail was changed or taken out
    Verify(Verify),
}

#[derive(clap::Args)]
struct Ls {
    #[command(flatten)]
    access: PoolAccess,
    /// Begin after the entry with this number
    #[arg(long, default_value_t = 0)]
    after: u64,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Verify {
    #[command(flatten)]
    access: PoolAccess,
    /// The hash that was the newest at some time before: it must still be part of the trail
    #[arg(long)]
    contains: Option<String>,
}

impl Audit {
    pub(crate) fn run(self) -> Outcome {
        match self.what {
            What::Ls(ls) => ls.run(),
            What::Verify(verify) => verify.run(),
        }
    }
}

/// Entries one page after the other.
fn each(
    access: &PoolAccess,
    mut after: u64,
    mut act: impl FnMut(Vec<AuditEntry>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let client = access.client()?;
    loop {
        let path = format!("/v1/audit?limit=1000&after={after}");
        let page: Page<AuditEntry> = client.get(&path, Duration::ZERO).map_err(pool_access::failure)?;
        let Some(last) = page.items.last() else { return Ok(()) };
        after = last.seq;
        let is_last = page.next.is_none();
        act(page.items)?;
        if is_last {
            return Ok(());
        }
    }
}

impl Ls {
    fn run(self) -> Outcome {
        each(&self.access, self.after, |entries| {
            for entry in entries {
                if self.json {
                    println!("{}", serde_json::to_string(&entry)?);
                    continue;
                }
                let outcome = match entry.outcome {
                    AuditOutcome::Done => "done",
                    AuditOutcome::Denied => "denied",
                    AuditOutcome::Refused => "refused",
                };
                println!(
                    "{:>8}  {}  {:7}  {:16}  {}  {}  {}",
                    entry.seq, entry.at_ms, outcome, entry.action, entry.actor, entry.target, entry.detail
                );
            }
            Ok(())
        })?;
        Ok(Exit::Success)
    }
}

impl Verify {
    fn run(self) -> Outcome {
        let mut last: Option<AuditEntry> = None;
        let mut count = 0u64;
        let mut first = None;
        let mut is_found = self.contains.is_none();
        each(&self.access, 0, |entries| {
            first = first.or(entries.first().map(|entry| entry.seq));
            is_found |= entries.iter().any(|entry| Some(&entry.hash) == self.contains.as_ref());
            let chain = last.iter().chain(&entries);
            let checked = pool::verify_audit(chain).map_err(|broken| {
                let hint = "somebody has changed the store by hand; compare it with a backup";
                Failure::new(Exit::Failure, broken.to_string(), hint)
            })?;
            count += checked - u64::from(last.is_some());
            last = entries.into_iter().next_back();
            Ok(())
        })?;
        if !is_found {
            let hint = "the trail was replaced by another, or is older than what is kept";
            return Err(Failure::new(Exit::Failure, "the trail does not contain that hash", hint).into());
        }
        match last {
            Some(last) => {
                println!(
                    "{count} entries, from {} to {}: none changed, none missing",
                    first.unwrap_or(1),
                    last.seq
                );
                println!("newest hash: {}", last.hash);
            }
            None => println!("the audit trail is empty"),
        }
        Ok(Exit::Success)
    }
}
