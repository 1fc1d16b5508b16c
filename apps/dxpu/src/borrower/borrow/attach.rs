//! From a lease to workers that let the program in.
//!
//! ```text
//! DIR/tokens   one line for each GPU, written anew whenever the lease was renewed (DXPU_TOKEN_FILE)
//! DIR/ca.pem   by which boxes are known (DXPU_CA); each has a name of its own (DXPU_WORKER_NAMES)
//! ```

use super::program::Signals;
use crate::borrower::preflight;
use crate::support::exit::{Exit, Failure};
use crate::support::library;
use crate::support::pool_access::failure;
use machine::files;
use pool_api::{Lease, LeaseTokens, SignedGrant};
use pool_auth::Identity;
use pool_client::Client;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use transport::{Address, ClientSecurity, ConnectError};

/// How long a worker may take to be there: it may just be cleaning up after another lease.
const ATTACH_WITHIN: Duration = Duration::from_secs(30);
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// A user that waits longer than this is told why.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// The way to the GPUs of a lease.
pub(super) struct Keeper {
    directory: tempfile::TempDir,
    workers: Vec<(Address, String)>,
    /// Some of the GPUs are in software.
    is_soft: bool,
}

impl Keeper {
    /// Finds a way to each GPU and tries it.
    pub(super) fn attach(client: &Client, lease: &Lease, signals: &Signals) -> anyhow::Result<Self> {
        let directory = super::place::make()?;
        let deadline = Instant::now() + ATTACH_WITHIN;
        let mut is_told = false;
        loop {
            let tokens = client.lease_tokens(lease.id).map_err(failure)?;
            let tried: Result<Vec<_>, Failure> =
                tokens.grants.iter().map(|grant| way_to(grant, &tokens.ca_certificate)).collect();
            match tried {
                Ok(found) => {
                    let is_soft = found.iter().any(|way| way.is_soft);
                    let workers = found.into_iter().map(|way| (way.address, way.name)).collect();
                    let keeper = Self { directory, workers, is_soft };
                    files::replace(&keeper.ca_file(), 0o600, tokens.ca_certificate.as_bytes())?;
                    keeper.write(&tokens)?;
                    return Ok(keeper);
                }
                // No later try would find a name that is of no machine.
                Err(error) if is_unknown_host(&error) => {
                    let hint = "add the name to DNS or /etc/hosts, or start the box with --advertise IP";
                    return Err(Failure { hint: hint.to_owned(), ..error }.into());
                }
                // Its worker may be starting, its GPU be cleaned, or the lease have moved: the tokens say where to.
                Err(error) if Instant::now() >= deadline || signals.stop_wanted().is_some() => {
                    return Err(error.into());
                }
                Err(error) => {
                    let waited =
                        ATTACH_WITHIN.saturating_sub(deadline.saturating_duration_since(Instant::now()));
                    if waited >= TOLD_AFTER && !std::mem::replace(&mut is_told, true) {
                        errln!("dxpu: {error}; trying again for {} s at most", ATTACH_WITHIN.as_secs());
                    }
                    std::thread::sleep(TRY_AGAIN_AFTER);
                }
            }
        }
    }

    /// Whether the worker of every GPU still serves the lease.
    pub(super) fn is_reachable(&self, client: &Client, lease: &Lease) -> bool {
        client.lease_tokens(lease.id).is_ok_and(|tokens| {
            tokens.grants.iter().all(|grant| way_to(grant, &tokens.ca_certificate).is_ok())
        })
    }

    /// Hands new tokens to the program, if they are for the same GPUs.
    pub(super) fn renew(&self, tokens: &LeaseTokens) -> anyhow::Result<()> {
        if tokens.grants.len() == self.workers.len() { self.write(tokens) } else { Ok(()) }
    }

    fn write(&self, tokens: &LeaseTokens) -> anyhow::Result<()> {
        let text: String = tokens.grants.iter().map(|grant| format!("{}\n", grant.token)).collect();
        Ok(files::replace(&self.token_file(), 0o600, text.as_bytes())?)
    }

    fn token_file(&self) -> PathBuf {
        self.directory.path().join("tokens")
    }

    fn ca_file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// The folder of the tokens, which only this user can enter.
    pub(super) fn folder(&self) -> &std::path::Path {
        self.directory.path()
    }

    pub(super) fn addresses(&self) -> Vec<Address> {
        self.workers.iter().map(|(address, _)| address.clone()).collect()
    }

    /// What the program's library needs to know beside the addresses.
    pub(super) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let names: Vec<&str> = self.workers.iter().map(|(_, name)| name.as_str()).collect();
        let mut environment = vec![
            ("DXPU_TOKEN_FILE", self.token_file().into()),
            ("DXPU_CA", self.ca_file().into()),
            ("DXPU_WORKER_NAMES", names.join(",").into()),
        ];
        environment.extend(library::soft_environment(self.is_soft));
        environment
    }
}

/// Finds ways for a program that has lost a GPU, as [`Keeper::attach`] finds the first ones.
pub(super) struct Finder;

impl pool_keeper::Ways for Finder {
    fn way_to(&self, grant: &SignedGrant, authority: &str) -> Result<pool_keeper::Way, String> {
        let way = way_to(grant, authority).map_err(|failure| failure.what)?;
        Ok(pool_keeper::Way { address: way.address.to_string(), name: way.name })
    }
}

/// A way to a GPU, tried.
#[derive(Clone)]
pub(crate) struct Way {
    pub(crate) address: Address,
    /// The worker's name in its certificate.
    pub(crate) name: String,
    /// It lends GPUs in software.
    pub(crate) is_soft: bool,
}

/// Whether the host of the address is not known.
fn is_unknown_host(failure: &Failure) -> bool {
    let cause = failure.cause.as_ref().and_then(|cause| cause.downcast_ref::<ConnectError>());
    matches!(cause, Some(ConnectError::Resolve { .. }))
}

/// The best of the ways to a GPU that works.
fn way_to(grant: &SignedGrant, authority: &str) -> Result<Way, Failure> {
    way_from(grant, authority, machine::boot_id().as_deref())
}

/// The same for a container on this machine, or another user, which have none of the machine's sockets.
pub(crate) fn way_by_network(grant: &SignedGrant, authority: &str) -> Result<Way, Failure> {
    way_from(grant, authority, None)
}

fn way_from(grant: &SignedGrant, authority: &str, our_boot: Option<&str>) -> Result<Way, Failure> {
    let name = Identity::box_server_name(grant.gpu.box_name.as_str());
    let mut last = Failure::new(
        Exit::Unreachable,
        format!("the box of {} does not say where its worker is", grant.gpu),
        "try again in a moment",
    );
    for address in ways(&grant.endpoints, our_boot) {
        let tls = ClientSecurity::CaNamed { ca: authority.to_owned(), name: name.clone() };
        let security = preflight::security_of(&address, tls)?;
        match preflight::check(&address, &security, &grant.token, Duration::ZERO) {
            Ok(seen) => return Ok(Way { address, name, is_soft: seen.executes_ptx_only }),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The ways that this machine can try, the fastest first. Sockets count if the box says that they are on this machine: one
/// elsewhere may have the same path, and the process that listens there must not see our token.
fn ways(endpoints: &[String], our_boot: Option<&str>) -> Vec<Address> {
    let their_boot = endpoints.iter().find_map(|endpoint| endpoint.strip_prefix(machine::BOOT_PREFIX));
    let is_here = their_boot.is_some() && their_boot == our_boot;
    let mut ways: Vec<Address> = endpoints.iter().filter_map(|endpoint| endpoint.parse().ok()).collect();
    ways.retain(|address| match address {
        Address::Unix(path) | Address::Shm(path) => is_here && path.exists(),
        Address::Tls(_) => true,
        // In the clear only by an explicit option, and there is none here.
        Address::Tcp(_) => false,
        // A slot of a virtual machine: its number means nothing outside.
        Address::Pcie(_) => false,
    });
    ways.sort_by_key(|address| match address {
        Address::Shm(_) => 0,
        Address::Unix(_) => 1,
        Address::Tls(_) | Address::Tcp(_) | Address::Pcie(_) => 2,
    });
    ways
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_this_machine_come_first_and_nothing_goes_in_the_clear() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("unix");
        std::fs::write(&path, "").unwrap();
        let endpoints = [
            "tls:a:1".to_owned(),
            "tcp:a:2".to_owned(),
            "shm:/no/such/socket".to_owned(),
            format!("unix:{}", path.display()),
            "nonsense".to_owned(),
            "boot:one".to_owned(),
        ];
        let texts = |endpoints: &[String], boot| -> Vec<String> {
            ways(endpoints, boot).iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            texts(&endpoints, Some("one")),
            [format!("unix:{}", path.display()), "tls:a:1".to_owned()]
        );
        // The same path on another machine, or of a box that does not say where it is, is another worker's.
        assert_eq!(texts(&endpoints, Some("two")), ["tls:a:1"]);
        assert_eq!(texts(&endpoints, None), ["tls:a:1"]);
        assert_eq!(texts(&endpoints[..5], Some("one")), ["tls:a:1"]);
    }
}
