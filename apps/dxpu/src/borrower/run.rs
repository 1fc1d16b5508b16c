//! `dxpu run`: runs a program with the GPUs of a worker.
//!
//! The program finds our libcuda.so.1 and libnvidia-ml.so.1 where it looks for NVIDIA's. This process then *becomes* the
//! program: it keeps its process number, its terminal, its signals and its exit code, and nothing of dxpu stays between
//! it and its caller.

use crate::borrower::borrow::Borrow;
use crate::borrower::preflight;
use crate::support::exit::{self, Exit, Failure, Outcome};
use crate::support::{library, quantity};
use anyhow::Context;
use machine::files;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use transport::{Address, ClientSecurity, Fingerprint, Scheme};
use worker_link::{Survive, UnknownSurvive};

const EXAMPLES: &str = "\
Examples:
  dxpu run --worker gpu-box:7400 --fingerprint 3f2a… --token-file token -- python train.py
  dxpu run --worker unix:/tmp/dxpu.sock -- ./program --its own --options
  dxpu run --worker tcp:127.0.0.1:7400 --delay 50us -- ./program     as if the worker were 50 us away
  dxpu run --worker box-1:7400,box-2:7400 --ca ca.pem -- ./program   the GPUs of two workers, in this order
  dxpu run --gpus 2 --model H200 -- python train.py                  two GPUs of the pool, for as long as it runs
  dxpu run --gpus 1 --survive -- python train.py                     goes on at another GPU when its own is lost
  dxpu run --worker box-1:7400 --timeline trace.json -- ./program    what ran when; ui.perfetto.dev opens the file
  dxpu run --gpus 1 --retry 3 --time-limit 8h -- python train.py     starts again on another GPU if its own fails

The program sees the variables DXPU_WORKER, DXPU_FINGERPRINT, DXPU_CA, DXPU_TOKEN_FILE, DXPU_DELAY, DXPU_LANES,
DXPU_STALL_TIMEOUT, DXPU_SURVIVE, DXPU_SURVIVE_ACCEPT, DXPU_CLASS, DXPU_CONTENT and DXPU_TIMELINE, and on GPUs in software CUPY_COMPILE_WITH_PTX=1, unless you set that one. DXPU_LOG=debug has the
library say what it does. DXPU_SPIN=TIME is how long its threads look for commands and answers before they sleep: longer costs cores, shorter costs wake-ups (default: 100us for commands and 1ms
for answers on machines with more than 4 cores, otherwise as little as each transport thinks best). DXPU_PATIENCE=TIME is
how long a worker that is busy is asked again (default: 60s). DXPU_WORKER_UID=UID,... are users, beside root and yours, at
whose unix: and shm: sockets the token may be shown.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Run {
    /// The worker: HOST:PORT (TLS), tcp:HOST:PORT, unix:/path, shm:/path or pcie:0000:01:00.0; several with commas between them
    #[arg(long, value_name = "ADDR", env = "DXPU_WORKER", required_unless_present_any = ["gpus", "lease"], value_delimiter = ',')]
    worker: Vec<Address>,
    #[command(flatten, next_help_heading = "Borrowing from a pool")]
    borrow: Borrow,
    /// The worker's certificate, as `dxpu worker` printed it
    #[arg(long, value_name = "HEX", env = "DXPU_FINGERPRINT", conflicts_with = "ca")]
    fingerprint: Option<Fingerprint>,
    /// Who signs the worker's certificate (PEM)
    #[arg(long, value_name = "FILE", env = "DXPU_CA")]
    ca: Option<PathBuf>,
    /// File with the worker's token; by default the one a worker of this user keeps on this machine
    #[arg(long, value_name = "FILE", env = "DXPU_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Add this much to every round trip, for experiments
    #[arg(long, value_name = "TIME", env = "DXPU_DELAY", value_parser = duration_text)]
    delay: Option<String>,
    /// How many connections carry bulk data
    #[arg(long, value_name = "N", env = "DXPU_LANES", value_parser = clap::value_parser!(u8).range(1..=7))]
    lanes: Option<u8>,
    /// A worker that is silent for this long is given up
    #[arg(long, value_name = "TIME", env = "DXPU_STALL_TIMEOUT", value_parser = duration_text)]
    stall_timeout: Option<String>,
    /// Outlive the loss of a session, a worker or a GPU: another session takes over, and the program waits and sees no error.
    /// `plain` saves everything that is mapped; `tight` leaves out what the program has freed with cuMemFreeAsync. `careful`, for results that differ from run to run, saves soon after each thing that the program reads.
    /// `required` gives the program no GPU whose worker keeps no images. Several with commas between them
    #[arg(long, value_name = "HOW", env = "DXPU_SURVIVE", value_parser = survival, num_args = 0..=1, require_equals = true,
          default_missing_value = "plain")]
    survive: Option<Survival>,
    /// After a loss, go on where the GPU computes something else than what the program got before, and say so; otherwise
    /// that is an error
    #[arg(long, env = "DXPU_SURVIVE_ACCEPT", value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue)]
    survive_accept: bool,
    /// What the program is to others on the same GPU: `online` programs are protected, `offline` ones work in their pauses,
    /// `dedicated` ones take no part in this. With --gpus the lease has this class, and an offline one is a guest beside an
    /// online lease (with --survive it is suspended when its seat is needed, and goes on in the next one); otherwise among the programs of one worker of your own, or of one lease (--lease)
    #[arg(long, value_name = "CLASS", env = "DXPU_CLASS", default_value = "dedicated")]
    class: work_class::Class,
    /// Write what ran when to this file: kernels and copies on the GPU, what threads of the program waited for, time on the
    /// network. Perfetto (ui.perfetto.dev) and chrome://tracing open it. The file is emptied first; all processes of the program
    /// write to it
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Have the worker keep what the program copies to the GPU, and send what it has by name: the next program of the same tenant
    /// that loads the same weights does not send them again. Over TCP and TLS alone
    #[arg(long, env = "DXPU_CONTENT", value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue)]
    content: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// What `--survive` and `DXPU_SURVIVE` say; the variable may also say no.
#[derive(Clone, Copy, Debug)]
struct Survival(Option<Survive>);

fn survival(text: &str) -> Result<Survival, UnknownSurvive> {
    match text {
        "" | "0" | "n" | "no" | "f" | "false" | "off" => Ok(Survival(None)),
        "y" | "yes" | "t" | "true" | "on" => Ok(Survival(Some(Survive::default()))),
        words => Ok(Survival(Some(words.parse()?))),
    }
}

/// A length of time, kept as it was written: the program's library reads it again.
fn duration_text(text: &str) -> Result<String, String> {
    quantity::duration(text).map(|_: Duration| text.to_owned())
}

impl Run {
    pub(crate) fn run(self) -> Outcome {
        let survive = self.survive.and_then(|Survival(survive)| survive);
        let accept = (survive.is_some() && self.survive_accept).then_some("1");
        let timeline = self.empty_timeline()?;
        if self.borrow.is_wanted() {
            // A worker that the environment names is that of a program around this one.
            if !self.worker.is_empty() && std::env::var_os("DXPU_WORKER").is_none() {
                let what = "--worker names one worker, and --gpus or --lease asks a pool for GPUs";
                let hint =
                    "leave one of the two out: --worker for a worker without a pool, --gpus N for a pool";
                return Err(Failure::new(Exit::Usage, what, hint).into());
            }
            let mut given = self.settings(survive, accept);
            given.extend(timeline.map(|file| ("DXPU_TIMELINE", file.into_os_string())));
            let patience = if survive.is_some() { Some(patience()?) } else { None };
            return self.borrow.run(&self.program, self.class, given, patience);
        }
        if self.borrow.suspends_when_idle() {
            let what = "--suspend-when-idle gives GPUs back to a pool, and this program borrows none";
            return Err(Failure::new(Exit::Usage, what, "borrow one with --gpus N --survive").into());
        }
        let (token, token_file) = self.token()?;
        let mut is_soft = false;
        for address in &self.worker {
            let seen = preflight::check(address, &self.security(address)?, &token, patience()?)?;
            is_soft |= seen.executes_ptx_only;
        }
        let library = library::extract()?;
        let mut program = std::process::Command::new(&self.program[0]);
        program.args(&self.program[1..]);
        for (name, value) in library.environment(&self.worker) {
            program.env(name, value);
        }
        program.envs(library::soft_environment(is_soft));
        let is_tls = self.worker.iter().any(|address| address.scheme() == Scheme::Tls);
        let mut set = |name: &str, value: Option<&OsStr>| {
            match value {
                Some(value) => program.env(name, value),
                None => program.env_remove(name),
            };
        };
        let fingerprint = self.fingerprint.filter(|_| is_tls).map(|fingerprint| fingerprint.to_string());
        set("DXPU_FINGERPRINT", fingerprint.as_deref().map(OsStr::new));
        set("DXPU_CA", absolute(self.ca.as_deref().filter(|_| is_tls))?.as_deref().map(Path::as_os_str));
        if let Some(file) = absolute(token_file.as_deref())? {
            set("DXPU_TOKEN_FILE", Some(file.as_os_str()));
        }
        set("DXPU_WORKER_NAMES", None);
        set("DXPU_KEEPER", None);
        set("DXPU_DELAY", self.delay.as_deref().map(OsStr::new));
        set("DXPU_LANES", self.lanes.map(|lanes| lanes.to_string()).as_deref().map(OsStr::new));
        set("DXPU_STALL_TIMEOUT", self.stall_timeout.as_deref().map(OsStr::new));
        set("DXPU_SURVIVE", survive.map(|survive| survive.to_string()).as_deref().map(OsStr::new));
        set("DXPU_SURVIVE_ACCEPT", accept.map(OsStr::new));
        if let Some(file) = &timeline {
            set("DXPU_TIMELINE", Some(file.as_os_str()));
        }
        set("DXPU_CLASS", self.shared_class().map(OsStr::new));
        set("DXPU_CONTENT", self.content.then_some(OsStr::new("1")));
        // Only returns when the program could not be started.
        let error = program.exec();
        Err(exit::not_started(&self.program[0], error).into())
    }

    /// Makes the file of the timeline, empty, and says where it is: the program may change its directory.
    fn empty_timeline(&self) -> anyhow::Result<Option<PathBuf>> {
        let Some(file) = absolute(self.timeline.as_deref())? else { return Ok(None) };
        if let Err(error) = std::fs::File::create(&file) {
            let what = format!("cannot write the timeline to {}: {error}", file.display());
            return Err(Failure::new(Exit::Usage, what, "name a file in a directory of yours").into());
        }
        Ok(Some(file))
    }

    /// The class of a program that takes part in sharing its GPU.
    fn shared_class(&self) -> Option<&'static str> {
        (self.class != work_class::Class::Dedicated).then(|| self.class.name())
    }

    /// Variables of the program's library, for a program that borrows from a pool.
    fn settings(&self, survive: Option<Survive>, accept: Option<&str>) -> Vec<(&'static str, OsString)> {
        let settings = [
            ("DXPU_DELAY", self.delay.clone()),
            ("DXPU_LANES", self.lanes.map(|lanes| lanes.to_string())),
            ("DXPU_STALL_TIMEOUT", self.stall_timeout.clone()),
            ("DXPU_SURVIVE", survive.map(|survive| survive.to_string())),
            ("DXPU_SURVIVE_ACCEPT", accept.map(str::to_owned)),
            ("DXPU_CLASS", self.shared_class().map(str::to_owned)),
            ("DXPU_CONTENT", self.content.then(|| "1".to_owned())),
        ];
        let given = settings.into_iter().filter_map(|(name, value)| Some((name, OsString::from(value?))));
        given.collect()
    }

    fn security(&self, address: &Address) -> anyhow::Result<ClientSecurity> {
        let tls = match (&self.fingerprint, &self.ca) {
            (Some(fingerprint), _) => ClientSecurity::Fingerprint(fingerprint.0),
            (None, Some(file)) => ClientSecurity::Ca(
                std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?,
            ),
            (None, None) => ClientSecurity::Plain,
        };
        Ok(preflight::security_of(address, tls)?)
    }

    /// The token and, unless it came by DXPU_TOKEN, its file.
    fn token(&self) -> anyhow::Result<(String, Option<PathBuf>)> {
        if let Some(file) = &self.token_file {
            return Ok((files::read_secret(file)?.trim().to_owned(), Some(file.clone())));
        }
        if let Ok(token) = std::env::var("DXPU_TOKEN") {
            return Ok((token.trim().to_owned(), None));
        }
        let kept = files::state_directory()?.join("token");
        if kept.exists() {
            return Ok((files::read_secret(&kept)?.trim().to_owned(), Some(kept)));
        }
        Ok((String::new(), None))
    }
}

/// How long a busy worker is asked again, here and by the program's library.
fn patience() -> anyhow::Result<Duration> {
    match std::env::var("DXPU_PATIENCE") {
        Err(_) => Ok(worker_link::PATIENCE_DEFAULT),
        Ok(text) => quantity::duration(&text).map_err(|error| {
            Failure::new(Exit::Usage, format!("DXPU_PATIENCE: {error}"), "write a time such as 60s").into()
        }),
    }
}

fn absolute(path: Option<&Path>) -> anyhow::Result<Option<PathBuf>> {
    path.map(std::path::absolute).transpose().context("cannot find the current directory")
}
