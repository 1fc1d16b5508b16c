//! The ledger's own work: what is due because time passed or a command changed something.

use super::Ledger;
use super::command::{Answer, Outcome};
use super::stock::Mask;
use pool_api::{LeaseId, Model};

/// Deletions and marks in one outcome: many, but well below what a transaction holds.
const SMALL_STEPS_MAX: usize = 64;

impl Ledger {
    /// The next piece of work that is due, or nothing when all is done.
    ///
    /// To be called until it says so, after each command and whenever [`Ledger::wake_at_ms`] has come: leases expire,
    /// silent boxes are given up, lost GPUs are replaced, spares are held back, pending leases are served, old records
    /// are forgotten. Each piece is one outcome, to be committed like that of a command.
    pub fn tick(&mut self, now_ms: u64) -> Option<Outcome> {
        self.now_ms = self.now_ms.max(now_ms);
        while self.step() {
            if !self.draft.is_empty() {
                return Some(self.finish(Answer::Work));
            }
        }
        None
    }

    /// When the next piece of work will be due, if nothing else happens.
    pub fn wake_at_ms(&self) -> Option<u64> {
        let expiry = self.expiries.first().map(|&(at_ms, _)| at_ms);
        let silence = self.silences.first().map(|&(at_ms, _)| at_ms);
        let host = self.host_silences.first().map(|&(at_ms, _)| at_ms);
        let unplug = self.unplug_due.first().map(|&(at_ms, _)| at_ms);
        let moves = self.moves_due.first().map(|&(at_ms, _)| at_ms);
        let limit = self.limits.first().map(|&(at_ms, _)| at_ms);
        let guest = self.guest_due_ms();
        let hungry = self.starving.due_ms();
        limit
            .into_iter()
            .chain(expiry)
            .chain(silence)
            .chain(host)
            .chain(unplug)
            .chain(moves)
            .chain(guest)
            .chain(hungry)
            .min()
    }

    /// Does now what the next request of each shape would have to do first. Changes nothing that counts.
    pub fn catch_up(&mut self) {
        self.stock.catch_up();
    }

    /// One step. Tells whether there was anything to do.
    fn step(&mut self) -> bool {
        // A lost GPU is replaced before a waiting lease gets what could replace it.
        if let Some(id) = self.unsettled.pop_first() {
            self.settle(id);
            return true;
        }
        if let Some((host, slot)) = self.restless.pop_first() {
            self.progress(&host, slot);
            return true;
        }
        if let Some(&(at_ms, id)) = self.expiries.first()
            && at_ms <= self.now_ms
        {
            self.expire(id);
            return true;
        }
        if self.end_at_limit() {
            return true;
        }
        if let Some((at_ms, name)) = self.silences.first()
            && *at_ms <= self.now_ms
        {
            let name = name.clone();
            self.on_silence(&name);
            return true;
        }
        if let Some((at_ms, name)) = self.host_silences.first()
            && *at_ms <= self.now_ms
        {
            let name = name.clone();
            self.on_host_silence(&name);
            return true;
        }
        if let Some((at_ms, gpu)) = self.unplug_due.first()
            && *at_ms <= self.now_ms
        {
            let gpu = gpu.clone();
            self.stop_waiting_for_host(&gpu);
            return true;
        }
        if let Some(&(at_ms, id)) = self.moves_due.first()
            && at_ms <= self.now_ms
        {
            self.move_is_late(id);
            return true;
        }
        self.evict()
            || self.balance_spares()
            || self.serve_next()
            || self.reclaim()
            || self.reclaim_idle()
            || self.empty_drained()
            || self.feed_starving()
            || self.forget()
    }

    fn serve_next(&mut self) -> bool {
        if !std::mem::take(&mut self.queue_stirred) || self.queue.is_empty() {
            return false;
        }
        if self.come_back() {
            self.queue_stirred = true;
            return true;
        }
        let next = self.next_in_line();
        let is_found = next.is_some();
        if let Some((id, places)) = next {
            self.serve(id, places);
            self.queue_stirred = true;
        }
        is_found
    }

    /// Holds back as many spares as there shall be, if so many are free; lets go of more.
    fn balance_spares(&mut self) -> bool {
        if !std::mem::take(&mut self.spares_stirred) {
            return false;
        }
        let wanted: Vec<(Model, u32)> =
            self.spares_wanted.iter().map(|(model, count)| (model.clone(), *count)).collect();
        for (model, wanted) in wanted {
            let mask = self.stock.mask(|class| class.model == model && class.seat.is_whole());
            let mut steps = 0;
            while steps < SMALL_STEPS_MAX && self.balance_one(mask, u64::from(wanted)) {
                steps += 1;
            }
            if steps > 0 {
                self.spares_stirred = true;
                return true;
            }
        }
        false
    }

    fn balance_one(&mut self, mask: Mask, wanted: u64) -> bool {
        let held = self.stock.spares(mask);
        let (place, spare) = match held.cmp(&wanted) {
            std::cmp::Ordering::Less => (self.stock.spare_candidate(mask), true),
            std::cmp::Ordering::Greater => (self.stock.spare_surplus(mask), false),
            std::cmp::Ordering::Equal => return false,
        };
        let Some(place) = place else { return false };
        let id = self.gpu_at(place);
        *self.entry_mut(&id).expect("it is in the stock").gpu.edit().spare = spare;
        self.draft.gpus.insert(id.clone());
        self.restand(&id);
        true
    }

    /// Tries to move leases off what is drained, whenever there may be somewhere new to go.
    fn empty_drained(&mut self) -> bool {
        let gains = self.stock.gains();
        if self.unwanted.is_empty() || self.unwanted_tried == gains {
            return false;
        }
        let unwanted: Vec<LeaseId> = self.unwanted.iter().copied().collect();
        for id in unwanted {
            self.move_away(id);
            if !self.draft.is_empty() {
                return true;
            }
        }
        self.unwanted_tried = gains;
        false
    }

    /// Forgets leases that ended, idempotency keys and events, when they are old or many.
    fn forget(&mut self) -> bool {
        while self.draft.len() < SMALL_STEPS_MAX && self.forget_one() {}
        !self.draft.is_empty()
    }

    fn forget_one(&mut self) -> bool {
        let settings = &self.settings;
        if let Some(&(at_ms, id)) = self.ended.first()
            && (at_ms + settings.ended_keep_ms <= self.now_ms || self.ended.len() > settings.ended_keep_max)
        {
            self.ended.pop_first();
            self.leases.remove(&id);
            self.draft.leases.insert(id);
            return true;
        }
        if let Some((at_ms, key, lease)) = self.keys.oldest()
            && (at_ms + settings.keys_keep_ms <= self.now_ms || self.keys.len() > settings.keys_keep_max)
        {
            let is_live = self.leases.get(&lease).is_some_and(|entry| entry.lease.state.is_live());
            if is_live {
                self.keys.touch(&key, self.now_ms);
                // Looked at again when it is the oldest again; if all are of live leases, there are no others to forget.
                return self.keys.oldest().is_some_and(|(oldest_ms, ..)| oldest_ms < self.now_ms);
            }
            self.keys.remove(&key);
            self.draft.keys.insert(key);
            return true;
        }
        if self.event_records.len() > settings.events_keep_max
            && let Some(seq) = self.event_records.pop_front()
        {
            self.draft.events_dropped.push(seq);
            return true;
        }
        false
    }
}
