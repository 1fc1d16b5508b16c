//! Where the worker is and how to reach it, from the environment that `dxpu run` sets.

use crate::{PATIENCE_DEFAULT, tokens::Tokens, users::trusted_users};
use std::{env, fs, path::PathBuf, time::Duration};
use transport::{Address, ClientSecurity};

/// How long a worker may be silent before it counts as lost. Longer than a usable network is ever interrupted, shorter
/// than a user waits.
const STALL_TIMEOUT_DEFAULT: Duration = Duration::from_secs(15);
/// More lanes move more bytes at once; beyond a few, one machine's memory is the limit.
const LANES_DEFAULT: usize = 4;
/// Each lane encrypts on a core of its own: with cores to spare, that is the limit long before memory is.
const ENCRYPTED_LANES_DEFAULT: usize = cuda_wire::LANES_MAX;

/// How long the sender thread polls: longer than a program takes from one launch to the next. A program that pauses
/// longer does not notice a wake-up.
const SENDER_SPIN: Duration = Duration::from_micros(100);
/// How long a waiting thread polls for a reply. CUDA itself polls without a limit; most waits are over within this
/// time.
const REPLY_SPIN: Duration = Duration::from_millis(1);

/// What the environment says.
#[derive(Clone)]
pub struct Config {
    /// Workers, in the order of their devices.
    pub workers: Vec<Address>,
    /// The names that their certificates must have; none when those are the hosts of their addresses.
    pub names: Vec<String>,
    /// How to check that a worker is the right one.
    pub security: ClientSecurity,
    /// What we prove ourselves with.
    pub tokens: Tokens,
    /// Extra round trip for experiments.
    pub delay: Option<Duration>,
    /// Bulk lanes per worker. `None`: as fits the transport and this machine.
    pub lanes: Option<usize>,
    /// Silence that counts as loss.
    pub stall_timeout: Duration,
    /// Await every command.
    pub await_all: bool,
    /// How long threads look for work or an answer before they sleep. `None`: as fits this machine.
    pub spin: Option<Duration>,
    /// How long to try again when a worker says that it is not ready yet.
    pub patience: Duration,
    /// Whose Unix sockets we show our token.
    pub users: Vec<u32>,
    /// Outlive the loss of a session.
    pub survive: bool,
}

impl Config {
    /// Reads the environment; the error is a sentence for the user.
    pub fn from_environment() -> Result<Self, String> {
        let workers = env::var("DXPU_WORKER").map_err(|_| {
            "DXPU_WORKER is not set: start the program with `dxpu run --worker ADDRESS -- PROGRAM`".to_owned()
        })?;
        let workers = workers
            .split(',')
            .map(|text| text.trim().parse::<Address>().map_err(|error| format!("DXPU_WORKER: {error}")))
            .collect::<Result<Vec<_>, _>>()?;
        let names: Vec<String> = match env::var("DXPU_WORKER_NAMES") {
            Ok(names) => names.split(',').map(|name| name.trim().to_owned()).collect(),
            Err(_) => Vec::new(),
        };
        if !names.is_empty() && names.len() != workers.len() {
            return Err(format!("DXPU_WORKER_NAMES: {} names for {} workers", names.len(), workers.len()));
        }
        let tokens = Tokens::from_environment()?;
        tokens.check(workers.len())?;
        Ok(Self {
            workers,
            names,
            security: security()?,
            tokens,
            delay: duration("DXPU_DELAY")?,
            lanes: number("DXPU_LANES")?,
            stall_timeout: duration("DXPU_STALL_TIMEOUT")?.unwrap_or(STALL_TIMEOUT_DEFAULT),
            await_all: env::var_os("DXPU_SYNC").is_some_and(|value| value == "1"),
            spin: duration("DXPU_SPIN")?,
            patience: duration("DXPU_PATIENCE")?.unwrap_or(PATIENCE_DEFAULT),
            users: trusted_users()?,
            survive: env::var_os("DXPU_SURVIVE").is_some_and(|value| value == "1"),
        })
    }

    /// The same for each worker alone, in order.
    pub fn each(&self) -> Vec<Self> {
        let alone = |(number, address): (usize, &Address)| Self {
            workers: vec![address.clone()],
            names: self.names.get(number).cloned().into_iter().collect(),
            tokens: self.tokens.of(number),
            ..self.clone()
        };
        self.workers.iter().enumerate().map(alone).collect()
    }

    /// Whether the workers are those of a lease: each has a name in its pool.
    pub(crate) fn is_leased(&self) -> bool {
        !self.names.is_empty()
    }

    /// How to check that a worker is the right one. A socket of this machine must belong to a process of a trusted
    /// user; a PCI function is the slot that the machine was given.
    pub(crate) fn security_for(&self, address: &Address) -> ClientSecurity {
        match address {
            Address::Unix(_) | Address::Shm(_) => ClientSecurity::Users(self.users.clone()),
            Address::Pcie(_) => ClientSecurity::Plain,
            Address::Tls(_) | Address::Tcp(_) => match (&self.security, self.names.first()) {
                (ClientSecurity::Ca(ca), Some(name)) if !name.is_empty() => {
                    ClientSecurity::CaNamed { ca: ca.clone(), name: name.clone() }
                }
                (other, _) => other.clone(),
            },
        }
    }

    /// How many bulk lanes to open to a worker.
    pub fn lanes_to(&self, address: &Address) -> usize {
        let wanted = self.lanes.unwrap_or(match address {
            Address::Tls(_) if transport::has_cores_to_spare() => ENCRYPTED_LANES_DEFAULT,
            _ => LANES_DEFAULT,
        });
        wanted.clamp(1, cuda_wire::LANES_MAX)
    }

    /// How long the sender looks for more commands after a write.
    pub fn sender_spin(&self) -> Duration {
        self.spin.unwrap_or(if transport::has_cores_to_spare() { SENDER_SPIN } else { Duration::ZERO })
    }

    /// How long a thread that waits for an answer looks for it. `None`: as seems best to the transport.
    pub fn reply_spin(&self) -> Option<Duration> {
        self.spin.or_else(|| transport::has_cores_to_spare().then_some(REPLY_SPIN))
    }
}

fn security() -> Result<ClientSecurity, String> {
    if let Ok(hex) = env::var("DXPU_FINGERPRINT") {
        return hex
            .parse::<transport::Fingerprint>()
            .map(|print| ClientSecurity::Fingerprint(print.0))
            .map_err(|error| format!("DXPU_FINGERPRINT: {error}"));
    }
    if let Some(path) = env::var_os("DXPU_CA") {
        let path = PathBuf::from(path);
        let pem = fs::read_to_string(&path)
            .map_err(|error| format!("DXPU_CA: cannot read {}: {error}", path.display()))?;
        return Ok(ClientSecurity::Ca(pem));
    }
    Ok(ClientSecurity::Plain)
}

fn number(name: &str) -> Result<Option<usize>, String> {
    match env::var(name) {
        Err(_) => Ok(None),
        Ok(text) => text.parse().map(Some).map_err(|_| format!("{name}: {text:?} is not a number")),
    }
}

fn duration(name: &str) -> Result<Option<Duration>, String> {
    match env::var(name) {
        Err(_) => Ok(None),
        Ok(text) => parse_duration(&text)
            .map(Some)
            .ok_or_else(|| format!("{name}: {text:?} is not a time such as 50us, 1.5ms or 2s")),
    }
}

/// Reads `50us`, `1.5ms`, `2s`; a bare number is seconds.
fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let unit_at = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
    let seconds = match &text[unit_at..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" | "" => 1.0,
        _ => return None,
    };
    let value: f64 = text[..unit_at].trim().parse().ok()?;
    Duration::try_from_secs_f64(value * seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("50us"), Some(Duration::from_micros(50)));
        assert_eq!(parse_duration("1.5ms"), Some(Duration::from_micros(1500)));
        assert_eq!(parse_duration("2"), Some(Duration::from_secs(2)));
        assert_eq!(parse_duration("2 fortnights"), None);
        assert_eq!(parse_duration("-1s"), None);
    }
}
