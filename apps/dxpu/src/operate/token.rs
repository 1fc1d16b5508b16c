//! `dxpu token`: lets machines and people into the pool.

use super::ask;
use super::lease::long_duration;
use super::list::{Look, print};
use super::revoke::Terms;
use super::words::{name_of, or_dash, time, who};
use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::paint::Tone;
use crate::support::pool_access::PoolAccess;
use crate::support::table::{Cell, Column};
use machine::files;
use pool_api::{AccessKind, NewToken, RevocationInfo, TokenInfo, TokenRequest};
use pool_auth::{Credential, Identity, Secret};
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  dxpu token create tenant/vision/ada --out ada.json    a credential for ada, who borrows for tenant vision
  dxpu token create viewer/wall --out wall.json         one that can only look: for the dashboard, for Prometheus
  dxpu token create operator/night --ttl 12h --out night.json
  dxpu token create box/rack1-a --out rack1-a.json      lets a box in, once; `dxpu box` takes the file
  dxpu token create host/hv-7 --out hv-7.json           lets a host in, once; `dxpu host` takes the file
  dxpu token ls
  dxpu token revoke 3f2a90c1d4e5b677                    with tokens and machines that it let in, and its leases
  dxpu token revoke 3f2a90c1d4e5b677 --alone            it was replaced by another; what it let in stays
  dxpu token revoke operator/night                      every token of theirs
  dxpu token revoked                                    what was revoked, by whom, and why

A credential file holds everything its owner needs: the managers' addresses, the pool's certificate and the token.
Give it to its owner, who sets DXPU_CREDENTIAL to it or puts it at ~/.config/dxpu/credential.json. It is shown to
nobody else, and never again.";

/// Let machines and people into the pool
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Token {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Make a token, and a credential file around it
    Create(Create),
    /// List tokens, without their secrets
    Ls {
        #[command(flatten)]
        look: Look,
    },
    /// Revoke tokens, with what was made with them: tokens, boxes and hosts that joined by them, leases
    Revoke {
        /// Their names, as `dxpu token ls` shows them; or for whom they are, such as operator/night: all of theirs
        #[arg(required = true)]
        token: Vec<String>,
        /// Spare tokens that were made with it, and machines that joined by it: to replace a token that nobody stole
        #[arg(long)]
        alone: bool,
        #[command(flatten)]
        terms: Terms,
    },
    /// List what was revoked and would still count otherwise
    Revoked {
        #[command(flatten)]
        look: Look,
    },
}

#[derive(clap::Args)]
struct Create {
    /// For whom: tenant/TENANT/USER, viewer/NAME, operator/NAME, admin/NAME, box/NAME or host/NAME
    identity: String,
    /// The file to write; must not exist
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// For how long, such as 12h or 365d; one day for a box or host that joins, otherwise 90 days
    #[arg(long, value_name = "TIME", value_parser = long_duration)]
    ttl: Option<Duration>,
    /// What it is for; shown to people
    #[arg(long, value_name = "TEXT", default_value = "")]
    note: String,
    #[command(flatten)]
    access: PoolAccess,
}

const DAY: Duration = Duration::from_secs(24 * 3600);

impl Token {
    pub(crate) fn run(self) -> Outcome {
        match self.verb {
            Verb::Create(create) => create.run(),
            Verb::Ls { look } => look.table(
                &[
                    Column::Whole("TOKEN"),
                    Column::Whole("KIND"),
                    Column::Cut("FOR"),
                    Column::Whole("EXPIRES"),
                    Column::Whole("USED"),
                    Column::Cut("MADE BY"),
                    Column::Cut("NOTE"),
                ],
                |client| ask::all::<TokenInfo>(client, "/v1/tokens").map(|(tokens, _)| tokens),
                |token| {
                    vec![
                        token.id.clone().into(),
                        name_of(&token.kind).into(),
                        who(&token.identity).into(),
                        time(token.expires_ms).into(),
                        if token.used { Cell::toned("yes", Tone::Faint) } else { "no".into() },
                        who(&token.created_by).into(),
                        or_dash(token.note.clone()).into(),
                    ]
                },
                "no tokens",
            ),
            Verb::Revoke { token, alone, terms } => {
                for token in token {
                    let (subject, what) = match token.contains('/') {
                        true => (identity(&token)?.to_string(), format!("what {token} was given")),
                        false => (format!("token/{token}"), format!("token {token}")),
                    };
                    terms.revoke(subject, alone, &what)?;
                }
                Ok(Exit::Success)
            }
            Verb::Revoked { look } => look.table(
                &[
                    Column::Cut("REVOKED"),
                    Column::Whole("AT"),
                    Column::Whole("REMEMBERED UNTIL"),
                    Column::Cut("BY"),
                    Column::Cut("WHY"),
                ],
                |client| ask::all::<RevocationInfo>(client, "/v1/revocations").map(|(entries, _)| entries),
                |entry| {
                    vec![
                        who(&entry.subject).into(),
                        time(entry.since_ms).into(),
                        time(entry.until_ms).into(),
                        who(&entry.by).into(),
                        or_dash(entry.reason.clone()).into(),
                    ]
                },
                "nothing was revoked",
            ),
        }
    }
}

/// `tenant/vision/ada`, with or without what every name begins with.
fn identity(text: &str) -> Result<Identity, Failure> {
    let whole = if text.contains("://") { text.to_owned() } else { format!("spiffe://dxpu/{text}") };
    whole.parse().map_err(|error: pool_auth::NameError| {
        let hint = "write tenant/TENANT/USER, viewer/NAME, operator/NAME, admin/NAME, box/NAME or host/NAME";
        Failure::new(Exit::Usage, error.to_string(), hint)
    })
}

impl Create {
    fn run(self) -> Outcome {
        let identity = identity(&self.identity)?;
        // A machine authenticates by a certificate, which this token gets it once.
        let is_machine = matches!(identity, Identity::Box(_) | Identity::Host(_));
        let kind = if is_machine { AccessKind::Join } else { AccessKind::User };
        let ttl = self.ttl.unwrap_or(if is_machine { DAY } else { 90 * DAY });
        if self.out.exists() {
            let what = format!("{} is there already", self.out.display());
            return Err(Failure::new(Exit::Usage, what, "choose another name, or remove it").into());
        }
        let client = self.access.client()?;
        let request = TokenRequest {
            kind,
            identity: identity.to_string(),
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
            note: self.note,
        };
        let made: NewToken = ask::post(&client, "/v1/tokens", &request)?;
        let credential = Credential {
            managers: client.credential().managers.clone(),
            authority: made.ca_certificate,
            identity,
            token: Some(Secret::new(made.token)),
            certificate: None,
            key: None,
        };
        let text = Secret::new(serde_json::to_string_pretty(&credential)? + "\n");
        files::write_new(&std::path::absolute(&self.out)?, 0o600, text.reveal().as_bytes())?;
        let said = format!(
            "{} can be {} until {} (token {})\n",
            self.out.display(),
            who(&made.info.identity),
            time(made.info.expires_ms),
            made.info.id
        );
        print(&said)?;
        Ok(Exit::Success)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_be_short() {
        assert_eq!(identity("tenant/vision/ada").unwrap().to_string(), "spiffe://dxpu/tenant/vision/ada");
        assert_eq!(identity("spiffe://dxpu/box/a").unwrap(), Identity::Box("a".into()));
        assert!(identity("ada").is_err() && identity("tenant/vision").is_err());
    }
}
