//! The ledger: every box, GPU and lease of a pool, and the rules by which they change.
//!
//! ```text
//!   Command ──▶ apply ──┐                              ┌──▶ Answer     (told after the commit)
//!                       ├──▶ records change in memory ─┼──▶ writes     (one transaction)
//!      time ──▶ tick  ──┘                              └──▶ events
//! ```
//!
//! The ledger is the leader's memory of the store. Each [`Outcome`] carries the writes that make the store agree with
//! memory again; they belong into one transaction, together with those of other outcomes if they fit. When a commit
//! fails or its end is unknown, memory is ahead of the store: the ledger is thrown away and loaded again.
//!
//! **What keeps a GPU from having two holders.** A grant counts the GPU's epoch up, in the transaction that makes it.
//! A GPU is granted only if its box has said that everything of that epoch and older is gone
//! (`cleaned_epoch`), and a box admits no borrower with an older epoch than it has seen. So whatever message
//! is lost, late or repeated, the borrower that is in with the current epoch is alone.
//!
//! **What keeps a GPU from being plugged into two hosts.** On the PCIe plane the same epoch is given to a slot of a host,
//! which counts its own the same way; see `attach.rs`.

mod agents;
mod attach;
mod batch;
mod boxes;
mod command;
mod cordon;
mod draft;
mod explain;
mod given;
mod gpu_life;
mod grants;
mod guarding;
mod guests;
mod host_explain;
mod host_report;
mod hosts;
mod keep;
mod keys;
mod lease_life;
mod leases;
mod leaving_guests;
mod life;
mod load;
mod lost;
mod measure;
mod moves;
mod moving;
mod operator;
mod parking;
mod parts;
mod possible;
mod queue;
mod reclaim;
mod report;
mod restored;
mod revoke;
mod seating;
mod serve;
mod settings;
mod starving;
mod stock;
mod tick;
mod times;
mod usage;
mod view;

#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use life::watch;

pub use batch::Batch;
pub use command::{About, Answer, Command, Outcome, Refusal};
pub use load::LoadError;
pub use measure::{Measured, measure_ledger};
pub use parts::LargestPart;
pub use possible::Impossible;
pub use restored::{Moments, RESTORED_KEY, Restored, restored};
pub use settings::Settings;
pub use view::Counts;

use crate::{Dice, SplitMix, records};
use attach::Held;
use boxes::{BoxEntry, Presence};
use draft::{Draft, Note};
use gpu_life::TrackedGpu;
use hosts::HostEntry;
use keys::Keys;
use lease_life::TrackedLease;
use pool_api::{Event, EventKind, Gpu, GpuId, Lease, LeaseId, Model, Name, TenantRecord, TenantUse};
use queue::Queue;
use seating::Seating;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use stock::{Place, Stock};

/// The most writes of one [`Outcome`]: a lease of 64 GPUs changes each of them, itself, its key and the events. An etcd
/// server takes 128 in one transaction unless told otherwise.
pub const WRITES_MAX: usize = 100;

/// The pool, in the memory of the manager that leads.
#[derive(Clone, Debug)]
pub struct Ledger {
    settings: Settings,
    /// The latest time that any caller gave; it never goes back.
    now_ms: u64,
    /// Grows with every change that is written.
    version: u64,
    boxes: BTreeMap<Name, BoxEntry>,
    hosts: BTreeMap<Name, HostEntry>,
    /// The highest number of a box or host.
    nodes_known: u32,
    leases: BTreeMap<LeaseId, LeaseEntry>,
    tenants: BTreeMap<Name, TenantEntry>,
    /// GPU time of leases that are over.
    usage: BTreeMap<Name, pool_api::TenantUsage>,
    spares_wanted: BTreeMap<Model, u32>,
    /// Grants get higher epochs than this: see `restored.rs`.
    epoch_floor: u64,
    tenure_base: u64,
    keys: Keys,
    stock: Stock,
    queue: Queue,
    /// The seats for guests that can be had, and which lease goes where.
    seating: Seating,
    /// Whether something changed that may let a pending lease run.
    queue_stirred: bool,
    /// Whether the number of spares may not be what it should be.
    spares_stirred: bool,
    /// When each live lease ends.
    expiries: BTreeSet<(u64, LeaseId)>,
    /// When each lease with a time limit is ended.
    limits: BTreeSet<(u64, LeaseId)>,
    /// When the GPUs of each granted lease were last seen at work: see `times.rs`.
    at_work_ms: BTreeMap<LeaseId, u64>,
    /// When it is next looked for idle leases.
    idle_look_ms: u64,
    /// When each box that is not dead has been silent for too long.
    silences: BTreeSet<(u64, Name)>,
    /// When each host that is not dead has been silent for too long.
    host_silences: BTreeSet<(u64, Name)>,
    /// GPUs that their boxes do not clean before a host has unplugged them.
    held: BTreeMap<GpuId, Held>,
    /// When that takes too long.
    unplug_due: BTreeSet<(u64, GpuId)>,
    /// Devices that have a lease's data, by lease: see [`pool_api::Gpu::kept`].
    kept: BTreeMap<LeaseId, BTreeSet<GpuId>>,
    /// Leases that wait, and may have their devices again.
    returning: BTreeSet<LeaseId>,
    /// Slots of hosts that may go on.
    restless: BTreeSet<(Name, u8)>,
    /// When each lease that is over ended.
    ended: BTreeSet<(u64, LeaseId)>,
    /// Leases one of whose GPUs is not what it was: lost, cleaned, or reached elsewhere.
    unsettled: BTreeSet<LeaseId>,
    /// Leases on GPUs that shall be emptied.
    unwanted: BTreeSet<LeaseId>,
    /// Those of them whose programs did not go on at a second place: they are moved without asking.
    hurried: BTreeSet<LeaseId>,
    /// When each lease gives its second place back.
    moves_due: BTreeSet<(u64, LeaseId)>,
    /// Stock gains when moving the unwanted ones was last tried.
    unwanted_tried: u64,
    /// Leases that are ended for a guarantee of another tenant, and why.
    reclaimed: VecDeque<(LeaseId, String)>,
    /// Guests that must leave, and why: their GPUs are needed as a whole, or cannot bear a guest.
    evicted: BTreeMap<LeaseId, String>,
    /// Those of them that have time to leave: see `leaving_guests.rs`.
    notices: BTreeMap<LeaseId, leaving_guests::Notice>,
    /// Guests that would move to a better seat: see `starving.rs`.
    starving: starving::Starving,
    /// When it is next looked whether a guarantee asks for that.
    reclaim_look_ms: u64,
    events: VecDeque<Event>,
    /// First numbers of the event records in the store.
    event_records: VecDeque<u64>,
    next_event: u64,
    draft: Draft,
    /// The placer asks for dice; with the policy used here it never throws them.
    unused_dice: SplitMix,
}

#[derive(Clone, Debug)]
struct LeaseEntry {
    lease: TrackedLease,
    /// `expires_ms` as it is in the store; renewals are not written each time.
    stored_expires_ms: u64,
}

#[derive(Clone, Debug)]
struct TenantEntry {
    record: TenantRecord,
    /// Whether an operator has set it.
    stored: bool,
    used: BTreeMap<Model, TenantUse>,
    granted: u64,
    pending: u64,
}

#[derive(Clone, Debug)]
struct GpuEntry {
    /// As stored; `counters` is always empty here.
    gpu: TrackedGpu,
    place: Place,
    counters: Option<pool_api::Counters>,
    /// Of a seat: what its box has measured of the online programs on its GPU. Not stored, like the counters.
    sharing: Option<pool_api::SeatLoad>,
    /// The slot of a host that it is granted for.
    attachment: Option<(Name, u8)>,
    /// By how much its box has raised its epoch beyond what this leader had given it.
    leapt: u64,
}

impl Ledger {
    /// An empty pool.
    pub fn new(settings: Settings, now_ms: u64) -> Self {
        Self {
            settings,
            now_ms,
            // Later than every version of earlier leaders, as long as they made fewer than 1000 changes a millisecond.
            version: now_ms << 10,
            boxes: BTreeMap::new(),
            hosts: BTreeMap::new(),
            nodes_known: 0,
            leases: BTreeMap::new(),
            tenants: BTreeMap::new(),
            usage: BTreeMap::new(),
            spares_wanted: BTreeMap::new(),
            epoch_floor: 0,
            tenure_base: 0,
            keys: Keys::default(),
            stock: Stock::new(),
            queue: Queue::default(),
            seating: Seating::default(),
            queue_stirred: false,
            spares_stirred: false,
            expiries: BTreeSet::new(),
            limits: BTreeSet::new(),
            at_work_ms: BTreeMap::new(),
            idle_look_ms: 0,
            silences: BTreeSet::new(),
            host_silences: BTreeSet::new(),
            held: BTreeMap::new(),
            unplug_due: BTreeSet::new(),
            kept: BTreeMap::new(),
            returning: BTreeSet::new(),
            restless: BTreeSet::new(),
            ended: BTreeSet::new(),
            unsettled: BTreeSet::new(),
            unwanted: BTreeSet::new(),
            hurried: BTreeSet::new(),
            moves_due: BTreeSet::new(),
            unwanted_tried: u64::MAX,
            reclaimed: VecDeque::new(),
            evicted: BTreeMap::new(),
            notices: BTreeMap::new(),
            starving: starving::Starving::default(),
            reclaim_look_ms: 0,
            events: VecDeque::new(),
            event_records: VecDeque::new(),
            next_event: 1,
            draft: Draft::default(),
            unused_dice: SplitMix::new(0),
        }
    }

    /// Does something. A refusal changes nothing.
    ///
    /// The answer must not be told before the writes are committed.
    pub fn apply(&mut self, command: &Command, now_ms: u64, dice: &mut dyn Dice) -> Result<Outcome, Refusal> {
        self.now_ms = self.now_ms.max(now_ms);
        let answer = match command {
            Command::Lead { manager } => Ok(self.lead(manager)),
            Command::Report { box_name, report } => self.report(box_name, report),
            Command::ReportHost { host, report } => self.report_host(host, report),
            Command::SetHost { host, request } => self.set_host(host, request),
            Command::CreateLease { owner, token, tenant, request, idempotency_key } => {
                let token = token.as_deref();
                self.create_lease(owner, token, tenant, request, idempotency_key.as_deref(), dice)
            }
            Command::Renew { lease } => self.renew(*lease),
            Command::Look { lease } => self.look(*lease),
            Command::Release { lease, reason } => self.release(*lease, reason),
            Command::Lost { lease, gpu, epoch, why } => self.lost(*lease, gpu, *epoch, why),
            Command::Move { lease, gpu, to_box, by } => {
                self.ask_move(*lease, gpu.as_ref(), to_box.as_ref(), by)
            }
            Command::Moved { lease, gpu, epoch } => self.moved(*lease, gpu, *epoch),
            Command::Stay { lease, gpu, epoch, why } => self.stay(*lease, gpu, *epoch, why),
            Command::Drill { lease } => self.drill(*lease),
            Command::Suspend { lease } => self.suspend(*lease),
            Command::Park { lease, gpu, epoch, image_bytes } => self.park(*lease, gpu, *epoch, *image_bytes),
            Command::KeepRunning { lease, why } => self.keep_running(*lease, why),
            Command::Resume { lease } => self.resume(*lease),
            Command::Taint { gpu, reason, by, drain } => self.taint(gpu, reason, by, *drain),
            Command::Untaint { gpu } => self.untaint(gpu),
            Command::DrainBox { box_name, reason, by } => self.drain_box(box_name, reason, by),
            Command::UndrainBox { box_name } => self.undrain_box(box_name),
            Command::CordonBox { box_name, reason, by } => self.cordon_box(box_name, reason, by),
            Command::RemoveBox { box_name } => self.remove_box(box_name),
            Command::RevokeBox { box_name, reason, by } => Ok(self.revoke_box(box_name, reason, by)),
            Command::RevokeHost { host, reason, by } => Ok(self.revoke_host(host, reason, by)),
            Command::Tell { kind, about, message } => Ok(self.tell(*kind, about, message)),
            Command::Break { gpu, reason } => self.break_gpu(gpu, reason),
            Command::Repair { gpu } => self.repair(gpu),
            Command::SetTenant { name, request } => self.set_tenant(name, request),
            Command::SetSpares { model, request } => self.set_spares(model, request),
        };
        match answer {
            Ok(answer) => Ok(self.finish(answer)),
            Err(refusal) => {
                debug_assert!(self.draft.is_empty(), "a refusal changes nothing");
                Err(refusal)
            }
        }
    }

    /// Notes that `manager` leads, unless the newest event about a leader already names it: a manager that
    /// starts again, or reads its books again, is no news.
    fn lead(&mut self, manager: &str) -> Answer {
        let message = format!("{manager} leads");
        let last = self.events.iter().rev().find(|event| event.kind == EventKind::LeaderChanged);
        if last.is_none_or(|event| event.message != message) {
            self.note(Note::new(EventKind::LeaderChanged, message));
        }
        Answer::Work
    }

    /// The writes that make the store agree with memory again.
    fn finish(&mut self, answer: Answer) -> Outcome {
        if self.draft.is_empty() {
            return Outcome { answer, writes: Vec::new(), events: Vec::new() };
        }
        self.version += 1;
        let draft = std::mem::take(&mut self.draft);
        let mut writes = Vec::with_capacity(draft.len());
        for name in &draft.boxes {
            writes.push((
                format!("box/{name}"),
                self.boxes.get(name).map(|entry| records::BOX.encode(&entry.stored())),
            ));
        }
        for name in &draft.hosts {
            writes.push((
                format!("host/{name}"),
                self.hosts.get(name).map(|entry| records::HOST.encode(&entry.stored())),
            ));
        }
        for id in &draft.gpus {
            writes.push((
                format!("gpu/{id}"),
                self.entry(id).map(|entry| records::GPU.encode::<Gpu>(&entry.gpu)),
            ));
        }
        for id in &draft.leases {
            if let Some(entry) = self.leases.get_mut(id) {
                entry.stored_expires_ms = entry.lease.expires_ms;
            }
            writes.push((
                format!("lease/{id}"),
                self.leases.get(id).map(|entry| records::LEASE.encode::<Lease>(&entry.lease)),
            ));
        }
        for name in &draft.tenants {
            writes.push((
                format!("tenant/{name}"),
                self.tenants.get(name).map(|entry| records::TENANT.encode(&entry.record)),
            ));
        }
        for name in &draft.usage {
            writes.push((
                format!("usage/{name}"),
                self.usage.get(name).map(|usage| records::USAGE.encode(usage)),
            ));
        }
        for model in &draft.spares {
            let count = self.spares_wanted.get(model).copied();
            let record = count
                .map(|count| records::SPARE.encode(&pool_api::SpareRecord { model: model.clone(), count }));
            writes.push((format!("spare/{model}"), record));
        }
        if draft.floor {
            let record = records::FloorRecord { epoch_floor: self.epoch_floor };
            writes.push((cordon::FLOOR_KEY.to_owned(), Some(records::FLOOR.write(&record))));
        }
        for key in &draft.keys {
            writes.push((keys::name(key), self.keys.record(key)));
        }
        for seq in &draft.events_dropped {
            writes.push((event_key(*seq), None));
        }
        let events = self.number_events(draft.events);
        if let Some(first) = events.first() {
            writes.push((event_key(first.seq), Some(records::EVENT.encode_all(&events))));
        }
        debug_assert!(writes.len() <= WRITES_MAX, "{} writes in one outcome", writes.len());
        Outcome { answer, writes, events }
    }

    fn number_events(&mut self, notes: Vec<Note>) -> Vec<Event> {
        let mut events = Vec::with_capacity(notes.len());
        for note in notes {
            events.push(note.at(self.next_event, self.now_ms));
            self.next_event += 1;
        }
        if let Some(first) = events.first() {
            self.event_records.push_back(first.seq);
            self.events.extend(events.iter().cloned());
            let surplus = self.events.len().saturating_sub(self.settings.events_keep_max);
            self.events.drain(..surplus);
        }
        events
    }

    fn note(&mut self, note: Note) {
        self.draft.events.push(note);
    }

    fn entry(&self, id: &GpuId) -> Option<&GpuEntry> {
        self.boxes.get(&id.box_name)?.slots.get(&id.slot)
    }

    fn entry_mut(&mut self, id: &GpuId) -> Option<&mut GpuEntry> {
        self.boxes.get_mut(&id.box_name)?.slots.get_mut(&id.slot)
    }

    fn tenant(&mut self, name: &Name) -> &mut TenantEntry {
        self.tenants.entry(name.clone()).or_insert_with(|| TenantEntry {
            record: TenantRecord::unspoken_of(name.clone()),
            stored: false,
            used: BTreeMap::new(),
            granted: 0,
            pending: 0,
        })
    }

    #[cfg(test)]
    fn mutated(&self, mutation: crate::simulation::Mutation) -> bool {
        self.settings.mutation == Some(mutation)
    }
}

/// Twenty digits, so that keys sort as numbers do.
fn event_key(seq: u64) -> String {
    format!("event/{seq:020}")
}
