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
use transport::{Address, ClientSecurity};

/// How long a worker may take to be there: it may just be cleaning up after another lease.
const ATTACH_WITHIN: Duration = Duration::from_secs(30);
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(200);

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
                // Its worker may be starting, its GPU be cleaned, or the lease have moved: the tokens say where to.
                Err(error) if Instant::now() >= deadline || signals.stop_wanted().is_some() => {
                    return Err(error.into());
                }
                Err(_) => std::thread::sleep(TRY_AGAIN_AFTER),
            }
        }
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

/// A way to a GPU, tried.
struct Way {
    address: Address,
    /// The worker's name in its certificate.
    name: String,
    /// It lends GPUs in software.
    is_soft: bool,
}

/// The best of the ways to a GPU that works.
fn way_to(grant: &SignedGrant, authority: &str) -> Result<Way, Failure> {
    let name = Identity::box_server_name(grant.gpu.box_name.as_str());
    let mut last = Failure::new(
        Exit::Unreachable,
        format!("the box of {} does not say where its worker is", grant.gpu),
        "try again in a moment",
    );
    for address in ways(&grant.endpoints, machine::boot_id().as_deref()) {
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
