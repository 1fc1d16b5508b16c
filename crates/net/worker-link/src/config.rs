//! Where the worker is and how to reach it, from the environment that `dxpu run` sets.

use crate::{PATIENCE_DEFAULT, Survive, tokens::Tokens, users::trusted_users};
use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};
use transport::{Address, ClientSecurity};

/// How long a worker may be silent before it counts as lost. Longer than a usable network is ever interrupted, shorter
/// than a user waits.
const STALL_TIMEOUT_DEFAULT: Duration = Duration::from_secs(15);
/// The same for a program that outlives its session. A mistake costs it a moment and no error, so it need not wait long;
/// the client pings four times as often.
const STALL_TIMEOUT_SURVIVING: Duration = Duration::from_secs(2);
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
    /// Outlive the loss of a session, in this way.
    pub survive: Option<Survive>,
    /// Go on where a replay differs from what the program saw, and say so.
    pub accept: bool,
    /// The shortest time from one image of the GPU's memory to the next. `None`: as the journal's policy has it.
    pub cut_every: Option<Duration>,
    /// Other workers at which a program goes on whose own worker is lost. They take the same token, and are checked in the
    /// same way.
    pub standbys: Vec<Address>,
    /// The socket of the process that knows more places to go on at.
    pub keeper: Option<PathBuf>,
    /// What the program is to others on its GPU, by number.
    pub class: u8,
    /// Where to write what the program and its GPUs do.
    pub timeline: Option<PathBuf>,
    /// Have workers keep what is sent, and send what they have by name.
    pub content: bool,
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
        let standbys = match env::var("DXPU_STANDBY") {
            Ok(standbys) => standbys
                .split(',')
                .map(|text| text.trim().parse::<Address>().map_err(|error| format!("DXPU_STANDBY: {error}")))
                .collect::<Result<Vec<_>, _>>()?,
            Err(_) => Vec::new(),
        };
        let tokens = Tokens::from_environment()?;
        tokens.check(workers.len())?;
        let survive = survive()?;
        let silence = if survive.is_some() { STALL_TIMEOUT_SURVIVING } else { STALL_TIMEOUT_DEFAULT };
        Ok(Self {
            workers,
            names,
            security: security()?,
            tokens,
            delay: duration("DXPU_DELAY")?,
            lanes: number("DXPU_LANES")?,
            stall_timeout: duration("DXPU_STALL_TIMEOUT")?.unwrap_or(silence),
            await_all: env::var_os("DXPU_SYNC").is_some_and(|value| value == "1"),
            spin: duration("DXPU_SPIN")?,
            patience: duration("DXPU_PATIENCE")?.unwrap_or(PATIENCE_DEFAULT),
            users: trusted_users()?,
            survive,
            accept: env::var_os("DXPU_SURVIVE_ACCEPT").is_some_and(|value| value == "1"),
            cut_every: duration("DXPU_CUT_EVERY")?,
            standbys,
            keeper: env::var_os("DXPU_KEEPER").map(PathBuf::from),
            class: class()?,
            content: env::var_os("DXPU_CONTENT").is_some_and(|value| value == "1"),
            timeline: env::var_os("DXPU_TIMELINE").filter(|path| !path.is_empty()).map(PathBuf::from),
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

    /// The same for another worker. An empty `name` or `token_file`, and no `ca_file` and `fingerprint`, stand for those
    /// of this worker. The error is a sentence for the user.
    pub fn at(
        &self,
        address: &Address,
        name: &str,
        token_file: &str,
        ca_file: Option<&str>,
        fingerprint: Option<&str>,
    ) -> Result<Self, String> {
        let tokens = match token_file {
            "" => self.tokens.clone(),
            path => Tokens::from_file(Path::new(path))?,
        };
        let security = match (fingerprint, ca_file) {
            (Some(hex), _) => ClientSecurity::Fingerprint(fingerprint_of(hex)?),
            (None, Some(path)) => ClientSecurity::Ca(authority(Path::new(path))?),
            (None, None) => self.security.clone(),
        };
        let names = if name.is_empty() { Vec::new() } else { vec![name.to_owned()] };
        Ok(Self { workers: vec![address.clone()], names, tokens, security, ..self.clone() })
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

/// `DXPU_SURVIVE`; 0 and nothing are no.
fn survive() -> Result<Option<Survive>, String> {
    match env::var("DXPU_SURVIVE").as_deref() {
        Err(_) | Ok("" | "0") => Ok(None),
        Ok(text) => Ok(Some(text.parse().map_err(|error| format!("DXPU_SURVIVE: {error}"))?)),
    }
}

/// `DXPU_CLASS`: dedicated, online or offline.
fn class() -> Result<u8, String> {
    match env::var("DXPU_CLASS") {
        Ok(name) => {
            let class = name.parse::<work_class::Class>().map_err(|error| format!("DXPU_CLASS: {error}"))?;
            Ok(class.code())
        }
        Err(_) => Ok(0),
    }
}

fn security() -> Result<ClientSecurity, String> {
    if let Ok(hex) = env::var("DXPU_FINGERPRINT") {
        let print = fingerprint_of(&hex).map_err(|error| format!("DXPU_FINGERPRINT: {error}"))?;
        return Ok(ClientSecurity::Fingerprint(print));
    }
    if let Some(path) = env::var_os("DXPU_CA") {
        let pem = authority(Path::new(&path)).map_err(|error| format!("DXPU_CA: {error}"))?;
        return Ok(ClientSecurity::Ca(pem));
    }
    Ok(ClientSecurity::Plain)
}

fn fingerprint_of(hex: &str) -> Result<[u8; 32], String> {
    hex.parse::<transport::Fingerprint>().map(|print| print.0).map_err(|error| error.to_string())
}

fn authority(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
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
    fn another_place_has_its_own_token_and_check_or_those_of_the_first() {
        let here: Address = "tcp:127.0.0.1:1".parse().unwrap();
        let there: Address = "tls:gpu-box:7400".parse().unwrap();
        let first = Config { names: vec!["first".to_owned()], ..crate::call::tests::config(&here) };
        let like_first = first.at(&there, "", "", None, None).unwrap();
        assert_eq!(like_first.workers, std::slice::from_ref(&there));
        assert!(like_first.names.is_empty(), "the name was the other worker's");
        assert_eq!(like_first.tokens.current(), "secret");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "another\n").unwrap();
        let print = "ab".repeat(32);
        let other = first.at(&there, "second", path.to_str().unwrap(), None, Some(&print)).unwrap();
        assert_eq!((other.tokens.current(), other.names), ("another".to_owned(), vec!["second".to_owned()]));
        assert!(matches!(other.security, ClientSecurity::Fingerprint(print) if print == [0xab; 32]));
        let gone = first.at(&there, "", "/nowhere/token", None, None).err().unwrap();
        assert!(gone.contains("/nowhere/token"), "{gone}");
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("50us"), Some(Duration::from_micros(50)));
        assert_eq!(parse_duration("1.5ms"), Some(Duration::from_micros(1500)));
        assert_eq!(parse_duration("2"), Some(Duration::from_secs(2)));
        assert_eq!(parse_duration("2 fortnights"), None);
        assert_eq!(parse_duration("-1s"), None);
    }
}
