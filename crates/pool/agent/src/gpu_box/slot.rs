//! One slot: looks at what is, asks the brain what to do, and does it.
//!
//! ```text
//! STATE/slot-3/fence            epochs (see lease-fence)
//!              admission.json   admission rules           worker.json   what the worker says of itself
//!              worker.log       what the worker writes    broken        there: an operator broke it (dxpu box break)
//!              unix, shm        sockets for programs of this machine
//! ```

use super::agent::Hands;
use super::brain::{self, Action, Seen, WorkerSeen};
use super::check::{self, Carried};
use super::disk::Disk;
use super::gpu::{Gpu, Reading};
use super::mps;
use super::pcie::PciePlane;
use super::process::{self, Process};
use super::watch::Watch;
use crate::complaint::Complaint;
use crate::membership::Home;
use crate::worker_word::{self, WorkerWord};
use anyhow::Context;
use gpu_function::Pass;
use lease_fence::{Fence, FenceError, LeaseAdmission};
use machine::files;
use pool_api::{BurnIn, Counters, GpuReport, GuardReport, Health, Want};
use pool_auth::Identity;
use std::collections::VecDeque;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What every slot of a box needs to know.
#[derive(Clone)]
pub(crate) struct Surroundings {
    pub(crate) box_name: String,
    pub(crate) state: PathBuf,
    /// The address that workers listen at, and how hosts reach it.
    pub(crate) listen_host: String,
    pub(crate) advertised_host: String,
    /// The port of slot 0; 0 for any.
    pub(crate) port: u16,
    /// Hosts may have slots as PCI devices.
    pub(crate) pcie: Option<PciePlane>,
    /// What GPUs are tested with.
    pub(crate) carried: Carried,
    /// The socket of the guardian that keeps images of sessions.
    pub(crate) guardian: Option<PathBuf>,
    /// What that guardian keeps, as the thread that looks after it saw last.
    pub(crate) guarded: Arc<Mutex<Option<GuardReport>>>,
    /// What guests may cost online leases, in percent of the time of their requests; `None` in a box without guests.
    pub(crate) slack_percent: Option<u32>,
    /// How long a long kernel of a guest may have the device at a stretch; `None`: as long as the driver gives.
    pub(crate) offline_slice_us: Option<u64>,
    /// The contexts of a GPU's lease and its guest are merged.
    pub(crate) is_merged: bool,
}

impl Surroundings {
    pub(crate) fn trust_file(&self) -> PathBuf {
        self.state.join("trust")
    }

    /// Where this box keeps its identity.
    pub(crate) fn home(&self) -> Home {
        Home { identity: Identity::Box(self.box_name.clone()), state: self.state.clone() }
    }

    pub(crate) fn slot_directory(&self, slot: u8) -> PathBuf {
        self.state.join(format!("slot-{slot}"))
    }
}

/// The file that says that a GPU is broken on purpose.
pub(crate) fn broken_file(slot_directory: &Path) -> PathBuf {
    slot_directory.join("broken")
}

/// Deaths of workers within this time are counted together.
const DEATHS_WITHIN: Duration = Duration::from_secs(60);
/// After so many deaths the GPU is bad. Programs cannot cause them: their sessions are processes of their own.
const DEATHS_MAX: usize = 3;
/// After so many sessions in a row that could not make their driver, the GPU is bad.
const FAILURES_MAX: u32 = 3;
/// The pause after a worker's death before the next one is started.
const REST: Duration = Duration::from_millis(500);
/// A killed process that is still there after this is stuck in the kernel.
const ENDED_WITHIN: Duration = Duration::from_secs(20);
/// How often sensors are read: they are slow and change slowly.
const READ_EVERY: Duration = Duration::from_secs(1);
/// A worker that has not written its addresses after this, on a disk that works, never will.
const MUTE_FOR: Duration = Duration::from_secs(20);
/// A worker without a first session ready after this will never have one. A real driver takes seconds.
const UNREADY_FOR: Duration = Duration::from_secs(180);
/// The longest reason: a report has room for so much.
const REASON_BYTES_MAX: usize = 200;

/// The page of a GPU that several workers use: its own and that of a seat, or those of its parts.
pub(crate) struct SeatPage {
    pub(crate) path: PathBuf,
    /// The host's worker is from before there was a page: its sessions and those of the seat do not see each other.
    pub(crate) is_apart: Arc<AtomicBool>,
}

pub(crate) struct Slot {
    gpu: Gpu,
    page: Option<SeatPage>,
    /// Of a seat: whether guests may come.
    watch: Option<Watch>,
    around: Surroundings,
    directory: PathBuf,
    fence: Fence,
    worker: Option<Worker>,
    /// Scrubbed since the last worker.
    is_scrubbed: bool,
    deaths: VecDeque<Instant>,
    rest_until: Option<Instant>,
    /// What is wrong, until the manager orders a burn-in.
    fault: Option<String>,
    /// What keeps it from being used, and passes: an operator has to repair nothing.
    trouble: Option<String>,
    complaint: Complaint,
    no_host_yet: Complaint,
    disk: Disk,
    burn_in: Option<BurnIn>,
    reading: Reading,
    read_at: Option<Instant>,
    /// The port that the last worker had: the next one should have it too.
    port: u16,
    /// The epoch in which a host has it as a PCI device.
    paired: Option<u64>,
    /// The epoch in which a host should have it and cannot.
    unpaired: Option<u64>,
    /// The lease token that programs of a guest read from the function and show to the worker.
    pass: Pass,
}

struct Worker {
    process: Process,
    /// None if an earlier agent started it.
    child: Option<Child>,
    word: Option<WorkerWord>,
    /// When its word last changed, or the disk last took no files.
    silent_since: Instant,
}

impl Worker {
    fn new(process: Process, child: Option<Child>, word: Option<WorkerWord>) -> Self {
        Self { process, child, word, silent_since: Instant::now() }
    }

    /// Where it is, once it has said so.
    fn found(&self) -> Option<&WorkerWord> {
        self.word.as_ref().filter(|word| !word.addresses.is_empty())
    }

    fn is_mute(&self) -> bool {
        let patience = match self.found() {
            None => MUTE_FOR,
            Some(word) if !word.ready => UNREADY_FOR,
            Some(_) => return false,
        };
        self.silent_since.elapsed() >= patience
    }
}

impl Slot {
    /// The slot, with the worker that an agent before this one left.
    pub(crate) fn new(
        gpu: Gpu,
        around: &Surroundings,
        left: Option<Process>,
        page: Option<SeatPage>,
    ) -> anyhow::Result<Self> {
        let directory = around.slot_directory(gpu.slot);
        files::make_private(&directory)?;
        let fence_file = directory.join("fence");
        let admission = LeaseAdmission {
            box_name: around.box_name.clone(),
            slot: gpu.slot.into(),
            trust_file: around.trust_file(),
            fence_file: fence_file.clone(),
        };
        worker_word::write_admission(&directory, &admission)?;
        let port = if around.port == 0 { 0 } else { around.port.saturating_add(gpu.slot.into()) };
        let pass = match &around.pcie {
            Some(plane) if !gpu.is_beside_others() => plane.insert_gpu(gpu.slot, directory.join("unix"))?,
            _ => Pass::default(),
        };
        let worker = left.map(|process| {
            let word = worker_word::word_of(&directory, process.pid);
            Worker::new(process, None, word)
        });
        Ok(Self {
            disk: Disk::new(directory.clone()),
            watch: page.as_ref().filter(|_| gpu.guest.is_some()).map(|page| {
                let promised_bytes = gpu.capacity.map(|_| gpu.memory_bytes);
                Watch::new(page.path.clone(), promised_bytes)
            }),
            gpu,
            page,
            around: around.clone(),
            directory,
            fence: Fence::new(fence_file),
            worker,
            is_scrubbed: false,
            deaths: VecDeque::new(),
            rest_until: None,
            fault: None,
            trouble: None,
            complaint: Complaint::default(),
            no_host_yet: Complaint::default(),
            burn_in: None,
            reading: Reading::default(),
            read_at: None,
            port,
            paired: None,
            unpaired: None,
            pass,
        })
    }

    fn look(&mut self, want: &Want) -> Result<Seen, FenceError> {
        if self.read_at.is_none_or(|at| at.elapsed() >= READ_EVERY) {
            self.reading = self.gpu.read();
            self.read_at = Some(Instant::now());
        }
        if let Some(watch) = &mut self.watch {
            let used_bytes = self.reading.counters.as_ref().and_then(|counters| counters.memory_used_bytes);
            let free_bytes = self.gpu.capacity.zip(used_bytes).map(|(all, used)| all.saturating_sub(used));
            watch.look(Instant::now(), free_bytes);
        }
        self.disk.look();
        let worker = self.look_at_worker();
        let epochs = self.fence.read()?;
        if let Want::BurnIn { epoch } = want
            && self.burn_in.as_ref().is_none_or(|result| result.epoch != *epoch)
        {
            // A burn-in is ordered after a repair: what was known before does not count.
            self.deaths.clear();
            self.fault = None;
        }
        Ok(Seen {
            worker,
            epochs,
            is_dirty: epochs.is_used() && !self.is_scrubbed,
            is_bad: self.what_is_wrong().is_some(),
            is_unplugged: self.unplugged().is_some(),
            burn_in: self.burn_in.as_ref().map(|result| (result.epoch, result.passed)),
            // On a disk that takes no files a worker cannot write its addresses, or does not even start.
            is_resting: self.rest_until.is_some_and(|until| Instant::now() < until)
                || self.disk.trouble().is_some(),
            is_mute: self.worker.as_ref().is_some_and(Worker::is_mute),
        })
    }

    fn look_at_worker(&mut self) -> WorkerSeen {
        let Some(worker) = &mut self.worker else { return WorkerSeen::None };
        if let Some(child) = &mut worker.child {
            // Reaps it if it has ended.
            let _ = child.try_wait();
        }
        if worker.process.is_alive() {
            // A living worker's last word counts while its file cannot be read.
            let word = worker_word::word_of(&self.directory, worker.process.pid);
            let is_same = word.as_ref().is_none_or(|word| worker.word.as_ref() == Some(word));
            worker.word = word.or(worker.word.take());
            // Not counted as silence while the disk takes no files: another worker could not write either.
            if !is_same || self.disk.trouble().is_some() {
                worker.silent_since = Instant::now();
            }
            let word = worker.word.as_ref().filter(|word| word.failures >= FAILURES_MAX);
            if let Some(word) = word {
                let reason = word.failure.as_deref().unwrap_or("it does not say why");
                self.fault = Some(format!("its driver cannot be started: {reason}"));
            }
            return WorkerSeen::Running;
        }
        WorkerSeen::Remains
    }

    fn unplugged(&self) -> Option<String> {
        // A part is broken with any other of its GPU.
        let files = self.gpu.slots_alike().map(|slot| broken_file(&self.around.slot_directory(slot)));
        let text = files.into_iter().find_map(|file| std::fs::read_to_string(file).ok());
        text.map(|text| text.trim().to_owned())
    }

    /// Why no lease should use this GPU.
    fn what_is_wrong(&self) -> Option<String> {
        // What is wrong with the GPU of a seat, the slot of the GPU says.
        let sensed = self.reading.fault.clone().filter(|_| self.gpu.guest.is_none());
        self.unplugged().or(sensed).or_else(|| self.fault.clone())
    }

    fn act(&mut self, action: Action) -> anyhow::Result<()> {
        match action {
            Action::Nothing => Ok(()),
            Action::Start => self.start(),
            Action::Kill => self.kill(),
            Action::Scrub => self.scrub(),
            Action::MarkClean(epoch) => Ok(self.fence.clean(epoch).map(drop)?),
            Action::MarkCleanIfUnused(epoch) => Ok(self.fence.clean_unused(epoch).map(drop)?),
            Action::BurnIn(epoch) => {
                self.burn_in(epoch);
                Ok(())
            }
        }
    }

    fn start(&mut self) -> anyhow::Result<()> {
        // From here on a borrower may write into its memory.
        self.is_scrubbed = false;
        let log = open_log(&self.directory.join("worker.log")).context("the worker's log")?;
        let host = &self.around.listen_host;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let mut listen = vec![format!("tls:{host}:{}", self.port)];
        for scheme in ["unix", "shm"] {
            let address = format!("{scheme}:{}", self.directory.join(scheme).display());
            // A path that is too long for a socket is left out.
            if address.parse::<transport::Address>().is_ok() {
                listen.push(address);
            }
        }
        let mut command = machine::this_program();
        command.arg("worker").arg("--by-lease").arg(&self.directory).args(["--devices", "1"]);
        command.arg("--tls-cert").arg(self.around.home().certificate_file());
        command.arg("--tls-key").arg(self.around.home().key_file());
        for address in &listen {
            command.args(["--listen", address]);
        }
        if let Some(socket) = &self.around.guardian {
            command.arg("--guardian").arg(socket);
        }
        if let Some(page) = &self.page {
            command.arg("--page").arg(&page.path);
            if let Some(percent) = self.around.slack_percent {
                command.args(["--slack", &percent.to_string()]);
            }
            // Also where there is none: the environment of the agent does not decide.
            command.args(["--offline-slice", &format!("{}us", self.around.offline_slice_us.unwrap_or(0))]);
            if self.around.is_merged {
                command.arg(process::MERGED);
                if self.gpu.needs_daemon() {
                    command.arg("--mps-folder").arg(mps::folder(&self.around.state, self.gpu.host_slot()));
                }
            }
        }
        command.args(check::driver_arguments(&self.gpu)).envs(check::driver_environment(&self.gpu));
        for variable in ["DXPU_TOKEN", "DXPU_TOKEN_FILE", "DXPU_JOIN_TOKEN"] {
            command.env_remove(variable);
        }
        // A group of its own: it outlives this process, and its sessions are found by it.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().context("cannot start a worker")?;
        let process = Process::find(child.id()).context("a worker that was just started is not there")?;
        tracing::info!(slot = self.gpu.slot, pid = process.pid, "worker started");
        if let Some(page) = self.page.as_ref().filter(|_| self.gpu.guest.is_none()) {
            page.is_apart.store(false, Ordering::Release);
        }
        self.worker = Some(Worker::new(process, Some(child), None));
        Ok(())
    }

    fn kill(&mut self) -> anyhow::Result<()> {
        let Some(worker) = &mut self.worker else { return Ok(()) };
        if !worker.process.is_alive() {
            let now = Instant::now();
            let last_words = last_line(&self.directory.join("worker.log"));
            tracing::warn!(slot = self.gpu.slot, pid = worker.process.pid, last_words, "the worker died");
            // A full disk is no fault of the GPU: no operator has to repair it.
            if self.disk.look_now().is_none() {
                self.deaths.push_back(now);
            }
            self.deaths.retain(|at| now.duration_since(*at) < DEATHS_WITHIN);
            self.rest_until = Some(now + REST);
            if self.deaths.len() >= DEATHS_MAX {
                let count = self.deaths.len();
                self.fault =
                    Some(format!("its worker died {count} times within {DEATHS_WITHIN:?}: {last_words}"));
            }
            if last_words.contains("cannot listen") {
                self.port = 0;
            }
        } else if worker.is_mute() {
            let silent = worker.silent_since.elapsed();
            tracing::warn!(slot = self.gpu.slot, pid = worker.process.pid, ?silent, "a mute worker is ended");
            self.rest_until = Some(Instant::now() + REST);
        }
        if let Err(left) = process::end(&worker.process, ENDED_WITHIN) {
            self.fault = Some(format!("processes {left:?} cannot be ended"));
            anyhow::bail!("processes {left:?} cannot be ended");
        }
        if let Some(child) = &mut worker.child {
            let _ = child.wait();
        }
        if let Some(port) = worker.word.as_ref().and_then(port_of) {
            self.port = port;
        }
        self.worker = None;
        Ok(())
    }

    fn scrub(&mut self) -> anyhow::Result<()> {
        // Module images of the last lease are removed with its data.
        let emptied = worker_word::remove_images(&self.directory).map_err(anyhow::Error::from);
        let (carried, page) = (&self.around.carried, self.page.as_ref().map(|page| page.path.as_path()));
        match emptied.and_then(|()| check::scrub(&self.gpu, &self.directory, carried, page)) {
            Ok(done) => {
                tracing::info!(slot = self.gpu.slot, done, "scrubbed");
                self.is_scrubbed = true;
                Ok(())
            }
            Err(error) => {
                // On a broken disk the scrubbing program could not be written: that is no fault of the GPU.
                if self.disk.look_now().is_none() {
                    self.fault = Some(format!("its memory cannot be scrubbed: {error:#}"));
                }
                self.rest_until = Some(Instant::now() + REST);
                Err(error)
            }
        }
    }

    fn burn_in(&mut self, epoch: u64) {
        let tested = match self.what_is_wrong() {
            Some(reason) => Err(reason),
            None => check::burn_in(&self.gpu, &self.directory, &self.around.carried)
                .map_err(|error| format!("{error:#}")),
        };
        tracing::info!(slot = self.gpu.slot, ?tested, "burn-in");
        let (passed, detail) = match tested {
            Ok(detail) => (true, detail),
            Err(detail) => (false, detail),
        };
        if !passed {
            self.fault.get_or_insert_with(|| format!("it failed its burn-in: {detail}"));
        }
        self.burn_in = Some(BurnIn { epoch, passed, detail: short(&detail) });
    }

    /// Lets only the host that is ordered have this slot as a PCI device.
    fn pair(&mut self, want: &Want, has_worker: bool) -> anyhow::Result<()> {
        let Some(plane) = &self.around.pcie else { return Ok(()) };
        let ordered = match want {
            Want::Serve { epoch, pcie: Some(pairing), .. } => Some((*epoch, pairing)),
            _ => None,
        };
        if let Some(paired) = self.paired
            && ordered.is_none_or(|(epoch, _)| epoch != paired)
        {
            self.pass.set("");
            plane.clear(self.gpu.slot, paired)?;
            self.paired = None;
        }
        if let Some((_, pairing)) = ordered {
            self.pass.set(pairing.pass.reveal());
        }
        if let Some((epoch, pairing)) = ordered.filter(|_| has_worker && self.paired.is_none()) {
            // The fence has the epoch on disk before the proxy takes any packet of it.
            self.fence.admit(epoch)?;
            plane.pair(self.gpu.slot, epoch, pairing)?;
            self.paired = Some(epoch);
            tracing::info!(slot = self.gpu.slot, epoch, host = %pairing.host, "a host has the GPU");
        }
        Ok(())
    }

    /// Why no borrower could use it now.
    fn unready(&self) -> Option<String> {
        if let Some(trouble) = self.disk.trouble().or(self.trouble.as_deref()) {
            return Some(trouble.to_owned());
        }
        let is_apart = self.page.as_ref().is_some_and(|page| page.is_apart.load(Ordering::Acquire));
        if self.gpu.guest.is_some() && is_apart {
            return Some(
                "the worker of its GPU is from before there were seats, and serves a lease".to_owned(),
            );
        }
        let Some(worker) = &self.worker else { return Some("its worker is not started yet".to_owned()) };
        match worker.found() {
            None => Some("its worker has not said yet where it is".to_owned()),
            Some(word) if !word.ready => Some("its worker makes its first session ready".to_owned()),
            Some(_) => self.watch.as_ref().and_then(Watch::closed),
        }
    }

    /// Remembers why the slot is not as ordered, for the report. `complaint` limits how often it is logged.
    fn note_trouble(&mut self, what: &str, error: &str) {
        if let Some(times) = self.complaint.wrong(error, Instant::now()) {
            tracing::error!(slot = self.gpu.slot, error, times, "{what}");
        }
        self.trouble = Some(error.to_owned());
    }

    fn no_trouble(&mut self) {
        self.trouble = None;
        if let Some(times) = self.complaint.right() {
            tracing::info!(slot = self.gpu.slot, times, "all is as it should be again");
        }
    }

    /// Where the worker is reached, as others must write it.
    fn endpoints(&self, word: &WorkerWord) -> Vec<String> {
        let host = &self.around.advertised_host;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let outward = |address: &String| match address.strip_prefix("tls:") {
            Some(_) => format!("tls:{host}:{}", port_of(word).unwrap_or(0)),
            None => address.clone(),
        };
        let mut endpoints: Vec<String> = word.addresses.iter().map(outward).collect();
        // Sockets are of use on this machine alone: borrowers elsewhere must not show a token to a stranger at the same
        // path.
        if word.addresses.iter().any(|address| address.starts_with("unix:") || address.starts_with("shm:")) {
            endpoints.extend(machine::boot_id().map(|boot| format!("{}{boot}", machine::BOOT_PREFIX)));
        }
        endpoints
    }
}

impl Hands for Slot {
    fn step(&mut self, want: &Want) -> bool {
        let seen = match self.look(want) {
            Ok(seen) => seen,
            // A fence that cannot be read admits no borrower, and nothing may be done by what it does not say. A damaged one
            // stays damaged; whatever else is wrong with it may pass.
            Err(error @ FenceError::Damaged { .. }) => {
                self.fault = Some(error.to_string());
                return false;
            }
            Err(error) => {
                self.note_trouble(
                    "cannot see what the slot remembers",
                    &format!("{:#}", anyhow::Error::new(error)),
                );
                return false;
            }
        };
        self.unpaired = None;
        let paired = self.pair(want, seen.worker == WorkerSeen::Running);
        if paired.is_ok() {
            self.no_host_yet.right();
        }
        if let Err(error) = paired {
            let error = format!("{error:#}");
            if let Some(times) = self.no_host_yet.wrong(&error, Instant::now()) {
                tracing::warn!(slot = self.gpu.slot, error, times, "no host can have it yet");
            }
            if let Want::Serve { epoch, .. } = want {
                self.unpaired = Some(*epoch);
            }
        }
        let action = brain::decide(&seen, want);
        if action != Action::Nothing {
            tracing::debug!(slot = self.gpu.slot, ?action, ?want, "acting");
        }
        match self.act(action) {
            Ok(()) => {
                // A slot that only rests after a failure has not recovered.
                if action != Action::Nothing || !seen.is_resting {
                    self.no_trouble();
                }
                action != Action::Nothing
            }
            Err(error) => {
                self.note_trouble("cannot do what must be done", &format!("{action:?}: {error:#}"));
                false
            }
        }
    }

    fn report(&self) -> GpuReport {
        let epochs = self.fence.read().unwrap_or_default();
        let word = self.worker.as_ref().and_then(Worker::found);
        let unready = self.unready();
        let health = match self.what_is_wrong() {
            None => Health::OK,
            Some(reason) => Health::bad(short(&reason)),
        };
        GpuReport {
            slot: self.gpu.slot,
            model: self.gpu.model.clone(),
            memory_bytes: self.gpu.memory_bytes,
            uuid: self.gpu.uuid.clone(),
            nvlink_group: self.gpu.nvlink_group,
            only_pcie: false,
            guest: self.gpu.guest,
            part: self.gpu.part,
            health,
            // An epoch that could not be paired is not reported as bound.
            bound_epoch: match self.unpaired {
                Some(epoch) if epoch == epochs.bound => epoch - 1,
                _ => epochs.bound,
            },
            cleaned_epoch: epochs.cleaned,
            ready: unready.is_none(),
            unready: unready.map(|why| short(&why)),
            endpoints: word.map(|word| self.endpoints(word)).unwrap_or_default(),
            counters: self.reading.counters.clone().or_else(|| soft_counters(word?)),
            burn_in: self.burn_in.clone(),
            must_leave: self.watch.as_ref().is_some_and(Watch::guest_must_leave),
            sharing: self.watch.as_ref().and_then(Watch::load),
        }
    }

    fn stop(&mut self) {
        if self.worker.is_some()
            && let Err(error) = self.kill()
        {
            tracing::error!(slot = self.gpu.slot, error = format!("{error:#}"), "a worker is left");
            return;
        }
        // No process uses the page of the GPU when its workers have ended. Those of parts are ended in the order of their slots.
        let is_last = self.gpu.guest.is_none() && self.gpu.slots_alike().end == self.gpu.slot + 1;
        if let Some(page) = self.page.as_ref().filter(|_| is_last) {
            let _ = std::fs::remove_file(&page.path);
        }
    }
}

fn soft_counters(word: &WorkerWord) -> Option<Counters> {
    let (percent, used_bytes) = word.use_of_soft?;
    Some(Counters {
        utilization_pct: Some(percent),
        memory_used_bytes: Some(used_bytes),
        ..Counters::default()
    })
}

fn port_of(word: &WorkerWord) -> Option<u16> {
    let tls = word.addresses.iter().find_map(|address| address.strip_prefix("tls:"))?;
    tls.rsplit_once(':')?.1.parse().ok()
}

/// What fits into a report.
fn short(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut end = clean.len().min(REASON_BYTES_MAX);
    while !clean.is_char_boundary(end) {
        end -= 1;
    }
    clean[..end].to_owned()
}

/// The log of all workers of a slot, one after the other. The one before is kept when it grows long.
fn open_log(path: &Path) -> std::io::Result<std::fs::File> {
    const LOG_BYTES_MAX: u64 = 4 << 20;
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.len() > LOG_BYTES_MAX) {
        std::fs::rename(path, path.with_extension("log.1"))?;
    }
    std::fs::File::options().create(true).append(true).open(path)
}

fn last_line(path: &Path) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let tail = &text[text.len().saturating_sub(4096)..];
    let tail = String::from_utf8_lossy(tail);
    let mut lines = tail.lines().filter(|line| !line.trim().is_empty());
    short(lines.next_back().unwrap_or("it wrote nothing"))
}
