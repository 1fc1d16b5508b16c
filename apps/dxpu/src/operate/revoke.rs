//! What `revoke` of every noun shares: the terms, and what is said of what has ended.

use super::ask;
use super::list::{Format, changed};
use crate::support::exit::Outcome;
use crate::support::pool_access::PoolAccess;
use pool_api::{RevocationDone, RevocationRequest};

/// How something is revoked.
#[derive(clap::Args, Clone)]
pub(crate) struct Terms {
    /// Why; told to whoever is refused because of it
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// Let leases go on until nobody renews them; otherwise they end, and with them the programs that use them
    #[arg(long)]
    keep_leases: bool,
    /// Also if that revokes the token you ask with
    #[arg(long)]
    include_own: bool,
    #[command(flatten)]
    access: PoolAccess,
    /// How to show what has ended
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "table")]
    output: Format,
}

impl Terms {
    /// The pool that is asked.
    pub(crate) fn client(&self) -> anyhow::Result<pool_client::Client> {
        self.access.client()
    }

    /// Revokes, and says what that ended.
    pub(crate) fn revoke(&self, subject: String, alone: bool, what: &str) -> Outcome {
        let request = RevocationRequest {
            subject,
            reason: self.reason.clone(),
            alone,
            keep_leases: self.keep_leases,
            include_own: self.include_own,
        };
        let client = self.access.client()?;
        let done: RevocationDone = ask::post(&client, "/v1/revocations", &request)?;
        changed(self.output, &done, &format!("{what} opens nothing any more; ended: {}", ended(&done)))
    }
}

/// `2 tokens, 1 machine, 3 leases (4 GPUs)`.
fn ended(done: &RevocationDone) -> String {
    let count = |count: u64, one: &str| match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {one}s"),
    };
    format!(
        "{}, {}, {} ({})",
        count(done.tokens, "token"),
        count(done.machines, "machine"),
        count(done.leases, "lease"),
        count(done.gpus, "GPU")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_ended_is_counted() {
        let done = RevocationDone { tokens: 2, machines: 1, leases: 0, gpus: 0, ..RevocationDone::default() };
        assert_eq!(ended(&done), "2 tokens, 1 machine, 0 leases (0 GPUs)");
    }
}
