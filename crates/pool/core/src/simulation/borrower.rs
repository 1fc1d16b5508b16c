//! A borrower: asks until it is answered, uses what it gets, gives it back; or crashes, or freezes.

use super::network::{Happening, Party};
use super::world::World;
use crate::{Answer, Command};
use pool_api::{
    Class, ErrorCode, GpuId, Lease, LeaseId, LeaseRequest, LeaseState, Name, Plane, Share, Survive, Topology,
};
use std::collections::BTreeSet;

/// How long a borrower waits for an answer before it asks again.
const PATIENCE_MS: u64 = 1_500;

#[derive(Debug)]
pub(super) struct Borrower {
    pub(super) tenant: Name,
    /// Counts lives: a crash begins a new one that knows nothing of the last.
    pub(super) life: u64,
    pub(super) frozen_until_ms: u64,
    doing: Doing,
    request: u64,
    asked_at_ms: u64,
    pub(super) operations: u64,
    pub(super) finished: u64,
    pub(super) inside: BTreeSet<(GpuId, u64)>,
    /// Where it was let in and is not any more.
    pub(super) thrown_out: BTreeSet<(GpuId, u64)>,
}

#[derive(Clone, Debug)]
enum Doing {
    Resting,
    /// Has asked under this key.
    Asking {
        key: String,
        wish: Box<LeaseRequest>,
    },
    /// Has a lease, pending or granted, until this moment.
    Using {
        lease: Box<Lease>,
        until_ms: u64,
    },
    GivingBack {
        lease: LeaseId,
    },
}

impl Borrower {
    pub(super) fn new(tenant: Name) -> Self {
        Self {
            tenant,
            life: 1,
            frozen_until_ms: 0,
            doing: Doing::Resting,
            request: 0,
            asked_at_ms: 0,
            operations: 0,
            finished: 0,
            inside: BTreeSet::new(),
            thrown_out: BTreeSet::new(),
        }
    }

    pub(super) fn is_resting(&self) -> bool {
        matches!(self.doing, Doing::Resting)
    }
}

impl World {
    pub(super) fn wake_borrower(&mut self, index: usize) {
        let until_ms = self.borrowers[index].frozen_until_ms;
        if self.now_ms < until_ms {
            return self.agenda.put(until_ms, Happening::Wake(Party::Borrower(index)));
        }
        let after_ms = if self.is_closing() { 1_000 } else { 100 + u64::from(self.chance(400)) };
        self.agenda.put(self.now_ms + after_ms, Happening::Wake(Party::Borrower(index)));
        let waited_ms = self.now_ms - self.borrowers[index].asked_at_ms;
        let wants_work = self.chance(4) == 0 && !self.is_closing();
        match self.borrowers[index].doing.clone() {
            Doing::Resting if wants_work => self.begin_asking(index),
            Doing::Resting => {}
            Doing::Asking { key, wish } if waited_ms >= PATIENCE_MS => self.ask_for(index, &key, *wish),
            Doing::Asking { .. } => {}
            Doing::Using { lease, until_ms } => {
                if self.now_ms >= until_ms || self.is_closing() {
                    self.give_back(index, lease.id);
                } else if !self.speak_of_places(index, &lease) {
                    // A keeper waits for changes of its lease all the time.
                    let look_after_ms =
                        if lease.request.survive.is_none() { lease.request.ttl_ms / 4 } else { 700 };
                    if waited_ms >= look_after_ms {
                        self.question(index, Command::Look { lease: lease.id });
                    }
                    self.knock_at_all(index, &lease);
                }
            }
            Doing::GivingBack { lease } if waited_ms >= PATIENCE_MS => self.give_back(index, lease),
            Doing::GivingBack { .. } => {}
        }
    }

    fn begin_asking(&mut self, index: usize) {
        let gpus = [1, 1, 1, 2, 3, 4][self.chance(6) as usize];
        let topology = [Topology::Any, Topology::SameBox, Topology::Nvlink][self.chance(3) as usize];
        let rack = self.picks(self.racks.len());
        let model = (self.chance(2) == 0).then(|| self.racks[rack].model.clone());
        let host = self.picks(self.hosts.len());
        let host = (self.chance(3) == 0).then(|| self.hosts[host].name.clone());
        let class = match self.chance(6) {
            _ if host.is_some() => Class::Dedicated,
            0 => Class::Offline,
            1 | 2 => Class::Online,
            _ => Class::Dedicated,
        };
        let is_guest = class == Class::Offline;
        let is_share = host.is_none() && class == Class::Dedicated && self.chance(2) == 0;
        let share = is_share.then(|| self.some_share());
        let survives = host.is_none() && self.chance(2) == 0;
        let survive = if survives { Survive::Gpu } else { Survive::None };
        let wish = LeaseRequest {
            share,
            gpus: match (is_guest || is_share, host.is_some()) {
                (true, _) => 1,
                (false, true) => gpus.min(2),
                (false, false) => gpus,
            },
            class,
            plane: if host.is_some() { Plane::Pcie } else { Plane::Api },
            host,
            topology,
            model,
            priority: [20, 50, 50, 100][self.chance(4) as usize],
            ttl_ms: [4_000, 8_000, 70_000][self.chance(3) as usize],
            survive,
            ..LeaseRequest::default()
        };
        let borrower = &mut self.borrowers[index];
        borrower.operations += 1;
        let key = format!("{index}-{}-{}", borrower.life, borrower.operations);
        borrower.doing = Doing::Asking { key: key.clone(), wish: Box::new(wish.clone()) };
        self.ask_for(index, &key, wish);
    }

    /// A share that fits into a part of the simulation, or one that only a whole GPU has.
    fn some_share(&mut self) -> Share {
        let milli = [100, 250, 250, 500][self.chance(4) as usize];
        let memory_bytes = [8 << 30, 20 << 30, 20 << 30, 30 << 30][self.chance(4) as usize];
        Share { milli, memory_bytes }
    }

    fn ask_for(&mut self, index: usize, key: &str, request: LeaseRequest) {
        let borrower = &self.borrowers[index];
        let command = Command::CreateLease {
            owner: format!("borrower-{index}"),
            token: None,
            tenant: borrower.tenant.clone(),
            request,
            idempotency_key: Some(key.to_owned()),
        };
        self.question(index, command);
    }

    /// Asks any manager; the wrong one does not answer, and then another is asked.
    pub(super) fn question(&mut self, index: usize, command: Command) {
        let manager = self.picks(self.managers.len());
        let borrower = &mut self.borrowers[index];
        borrower.request += 1;
        borrower.asked_at_ms = self.now_ms;
        let request = borrower.life << 32 | borrower.request;
        self.ask(manager, Party::Borrower(index), request, command);
    }

    fn give_back(&mut self, index: usize, lease: LeaseId) {
        let life = self.borrowers[index].life;
        self.hang_up(index, life);
        self.borrowers[index].doing = Doing::GivingBack { lease };
        self.question(index, Command::Release { lease, reason: "released".into() });
    }

    fn knock_at_all(&mut self, index: usize, lease: &Lease) {
        if lease.state != LeaseState::Granted || lease.request.plane == Plane::Pcie {
            return;
        }
        let life = self.borrowers[index].life;
        for grant in &lease.grants {
            // It goes on at its second place.
            if lease.moving.as_ref().is_some_and(|moving| {
                moving.from == grant.gpu
                    && self.borrowers[index].inside.contains(&(moving.to.gpu.clone(), moving.to.epoch))
            }) {
                continue;
            }
            if !self.borrowers[index].inside.contains(&(grant.gpu.clone(), grant.epoch)) {
                let what = Happening::Knock {
                    borrower: index,
                    life,
                    gpu: grant.gpu.clone(),
                    lease: lease.id,
                    epoch: grant.epoch,
                };
                self.send(what);
            }
        }
    }

    /// An answer arrives. Only the answer to the last question counts, and a new life knows no questions.
    pub(super) fn hear(
        &mut self,
        index: usize,
        request: u64,
        done_ms: u64,
        answer: Result<Answer, ErrorCode>,
    ) {
        let borrower = &self.borrowers[index];
        let is_last = request >> 32 == borrower.life && request & 0xffff_ffff == borrower.request;
        if !is_last || borrower.is_resting() {
            return;
        }
        let lease = match answer {
            Ok(Answer::Lease(lease)) => lease,
            Ok(Answer::Loss(loss)) => Box::new(loss.lease),
            Ok(other) => panic!("{other:?} is no answer to a borrower"),
            Err(ErrorCode::NotLeader | ErrorCode::Unavailable | ErrorCode::TooMany) => return,
            // What it asks for cannot be had in this pool.
            Err(ErrorCode::Conflict) if matches!(borrower.doing, Doing::Asking { .. }) => {
                return self.finish_operation(index);
            }
            // What it knows of its lease is old: it looks again.
            Err(ErrorCode::Conflict) => {
                if let Doing::Using { lease, .. } = self.borrowers[index].doing.clone() {
                    self.question(index, Command::Look { lease: lease.id });
                }
                return;
            }
            // The lease is over and forgotten.
            Err(_) => return self.finish_operation(index),
        };
        self.checker.told(done_ms, &lease);
        match &self.borrowers[index].doing {
            Doing::Resting => {}
            Doing::Asking { .. } | Doing::Using { .. } if !lease.state.is_live() => {
                self.finish_operation(index)
            }
            Doing::Asking { .. } => {
                let until_ms = self.now_ms + 300 + u64::from(self.chance(8_000));
                self.borrowers[index].doing = Doing::Using { lease, until_ms };
            }
            Doing::Using { until_ms, .. } => {
                let until_ms = *until_ms;
                self.borrowers[index].doing = Doing::Using { lease, until_ms };
            }
            Doing::GivingBack { .. } if lease.state.is_live() => {}
            Doing::GivingBack { .. } => self.finish_operation(index),
        }
    }

    fn finish_operation(&mut self, index: usize) {
        let life = self.borrowers[index].life;
        self.hang_up(index, life);
        let borrower = &mut self.borrowers[index];
        borrower.finished += 1;
        borrower.doing = Doing::Resting;
        borrower.inside.clear();
        borrower.thrown_out.clear();
    }

    pub(super) fn opened(&mut self, index: usize, life: u64, gpu: GpuId, epoch: u64, admitted: bool) {
        let borrower = &mut self.borrowers[index];
        if borrower.life == life && admitted && matches!(borrower.doing, Doing::Using { .. }) {
            borrower.inside.insert((gpu, epoch));
        } else if admitted {
            // The borrower had given up waiting: no program uses this session.
            self.hang_up(index, life);
        }
    }

    pub(super) fn closed(&mut self, index: usize, life: u64, gpu: GpuId, epoch: u64) {
        let borrower = &mut self.borrowers[index];
        if borrower.life == life && borrower.inside.remove(&(gpu.clone(), epoch)) {
            borrower.thrown_out.insert((gpu, epoch));
        }
    }

    pub(super) fn crash_borrower(&mut self, index: usize) {
        let life = self.borrowers[index].life;
        self.hang_up(index, life);
        let borrower = &mut self.borrowers[index];
        // What it was doing is for the others to end.
        if !borrower.is_resting() {
            borrower.finished += 1;
        }
        borrower.life += 1;
        borrower.request = 0;
        borrower.doing = Doing::Resting;
        borrower.inside.clear();
        borrower.thrown_out.clear();
    }
}
