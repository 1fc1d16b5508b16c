//! A manager: leads if it can, collects outcomes, commits them together, then answers.

use super::Mutation;
use super::network::{Happening, Party};
use super::world::World;
use crate::{Answer, Batch, Command, Ledger, Outcome, Settings};
use pool_api::ErrorCode;
use pool_store::{
    Campaign, Candidacy, Fault, Leadership, Memory, Operation, Outcome as Committed, Store, StoreError,
    Transaction, Want,
};
use std::time::Duration;

pub(super) struct Manager {
    pub(super) client: Memory,
    /// How wrong its clock is.
    pub(super) skew_ms: i64,
    pub(super) frozen_until_ms: u64,
    pub(super) down_until_ms: u64,
    leads: Option<Leading>,
    /// After a commit whose end is unknown, everything sent before must be fenced off.
    unfenced: Option<Leadership>,
}

struct Leading {
    ledger: Ledger,
    leadership: Leadership,
    waiting: Vec<Waiting>,
    flush_due: bool,
}

/// An outcome or a refusal, to be told after everything before it is committed.
struct Waiting {
    outcome: Result<Outcome, ErrorCode>,
    asker: Option<(Party, u64)>,
    done_ms: u64,
}

impl Manager {
    pub(super) fn new(client: Memory, skew_ms: i64) -> Self {
        Self { client, skew_ms, frozen_until_ms: 0, down_until_ms: 0, leads: None, unfenced: None }
    }

    pub(super) fn crash(&mut self, until_ms: u64) {
        self.leads = None;
        self.unfenced = None;
        self.down_until_ms = until_ms;
    }

    fn load(&self, settings: &Settings, now_ms: u64) -> Option<Ledger> {
        let records = self.client.list("", Want::Records).ok()?.records().ok()?;
        let records = records.into_iter().map(|record| (record.key, record.value));
        Some(Ledger::load(records, settings.clone(), now_ms).expect("what was stored can be read"))
    }
}

impl World {
    fn clock(&self, index: usize) -> u64 {
        self.now_ms.saturating_add_signed(self.managers[index].skew_ms)
    }

    pub(super) fn wake_manager(&mut self, index: usize) {
        let manager = &self.managers[index];
        let until_ms = manager.frozen_until_ms.max(manager.down_until_ms);
        if self.now_ms < until_ms {
            return self.agenda.put(until_ms, Happening::WakeManager(index));
        }
        let after_ms = 150 + u64::from(self.chance(200));
        self.agenda.put(self.now_ms + after_ms, Happening::WakeManager(index));
        self.arm_faults(index);
        if let Some(leadership) = self.managers[index].unfenced.take() {
            self.fence(index, &leadership);
        } else if self.managers[index].leads.is_some() {
            let leadership = self.managers[index].leads.as_ref().map(|leading| leading.leadership.clone());
            let alive = self.managers[index].client.keep_alive(&leadership.expect("it leads"));
            if matches!(alive, Err(StoreError::LeadershipLost { .. }))
                && self.scenario.mutation != Some(Mutation::WriteUnfenced)
            {
                self.managers[index].leads = None;
            }
            self.work(index);
        } else {
            self.campaign(index);
        }
    }

    fn campaign(&mut self, index: usize) {
        let now_ms = self.clock(index);
        let settings = self.settings();
        let manager = &mut self.managers[index];
        let candidacy = Candidacy {
            name: "manager".into(),
            address: format!("m{index}"),
            ttl: Duration::from_millis(2_000),
        };
        if let Ok(Campaign::Won(leadership)) = manager.client.campaign(&candidacy) {
            match manager.load(&settings, now_ms) {
                Some(ledger) => {
                    self.leaders += 1;
                    self.checker.led_since_ms = self.now_ms;
                    manager.leads =
                        Some(Leading { ledger, leadership, waiting: Vec::new(), flush_due: false });
                    self.work(index);
                }
                None => manager.unfenced = Some(leadership),
            }
        }
    }

    /// Nothing that was sent before can take effect any more; then what did is read.
    fn fence(&mut self, index: usize, leadership: &Leadership) {
        let now_ms = self.clock(index);
        let settings = self.settings();
        let manager = &mut self.managers[index];
        match manager.client.fence(leadership) {
            Ok(leadership) => match manager.load(&settings, now_ms) {
                Some(ledger) => {
                    self.checker.led_since_ms = self.now_ms;
                    manager.leads =
                        Some(Leading { ledger, leadership, waiting: Vec::new(), flush_due: false });
                }
                None => manager.unfenced = Some(leadership),
            },
            Err(StoreError::LeadershipLost { .. }) => {}
            Err(_) => manager.unfenced = Some(leadership.clone()),
        }
    }

    pub(super) fn requested(&mut self, index: usize, from: Party, request: u64, command: Command) {
        let manager = &self.managers[index];
        if self.now_ms < manager.down_until_ms {
            return;
        }
        if self.now_ms < manager.frozen_until_ms {
            let at_ms = manager.frozen_until_ms;
            return self.agenda.put(at_ms, Happening::Ask { manager: index, from, request, command });
        }
        let (clock_ms, done_ms) = (self.clock(index), self.now_ms);
        let early = self.scenario.mutation == Some(Mutation::AnswerEarly);
        let Some(leading) = &mut self.managers[index].leads else {
            return self.send(Happening::Told {
                to: from,
                request,
                done_ms,
                answer: Err(ErrorCode::NotLeader),
            });
        };
        let outcome = leading.ledger.apply(&command, clock_ms, &mut self.dice);
        let outcome = outcome.map_err(|refusal| refusal.to_answer().error.code);
        let answer = outcome.as_ref().map(|outcome| outcome.answer.clone()).map_err(|code| *code);
        let asker = (!early).then_some((from, request));
        leading.waiting.push(Waiting { outcome, asker, done_ms });
        if early {
            self.send(Happening::Told { to: from, request, done_ms, answer });
        }
        self.work(index);
    }

    /// Does what is due, and commits soon.
    fn work(&mut self, index: usize) {
        let (clock_ms, done_ms) = (self.clock(index), self.now_ms);
        let Some(leading) = &mut self.managers[index].leads else { return };
        while let Some(outcome) = leading.ledger.tick(clock_ms) {
            assert_eq!(outcome.answer, Answer::Work);
            leading.waiting.push(Waiting { outcome: Ok(outcome), asker: None, done_ms });
        }
        let wrong = leading.ledger.seat_inconsistencies();
        wrong.into_iter().for_each(|what| self.checker.violation(what));
        if !leading.waiting.is_empty() && !leading.flush_due {
            leading.flush_due = true;
            let after_ms = u64::from(self.chance(25));
            self.agenda.put(self.now_ms + after_ms, Happening::Flush { manager: index });
        }
    }

    pub(super) fn flush(&mut self, index: usize) {
        let manager = &self.managers[index];
        let until_ms = manager.frozen_until_ms;
        if self.now_ms < until_ms {
            return self.agenda.put(until_ms, Happening::Flush { manager: index });
        }
        let Some(leading) = &mut self.managers[index].leads else { return };
        leading.flush_due = false;
        let mut waiting = std::mem::take(&mut leading.waiting).into_iter().peekable();
        while waiting.peek().is_some() {
            let (mut batch, mut told) = (Batch::default(), Vec::new());
            let limits = self.managers[index].client.limits();
            while let Some(next) = waiting.peek() {
                let fits = match &next.outcome {
                    // One write is the condition's.
                    Ok(outcome) => batch.add(outcome, limits.writes - 1, limits.bytes),
                    Err(_) => true,
                };
                if !fits {
                    break;
                }
                told.extend(waiting.next());
            }
            if !self.commit(index, batch) {
                // The manager answers no party: what was done is done again, under the same key, or is not
                // needed any more.
                return;
            }
            for Waiting { outcome, asker, done_ms } in told {
                let answer = outcome.map(|outcome| outcome.answer);
                if let Some((to, request)) = asker {
                    self.send(Happening::Told { to, request, done_ms, answer });
                }
            }
        }
    }

    fn commit(&mut self, index: usize, batch: Batch) -> bool {
        if batch.is_empty() {
            return true;
        }
        self.arm_faults(index);
        let mutation = self.scenario.mutation;
        let manager = &mut self.managers[index];
        let leadership = manager.leads.as_ref().expect("only a leader commits").leadership.clone();
        let mut transaction = Transaction::new();
        if mutation != Some(Mutation::WriteUnfenced) {
            transaction = transaction.when(leadership.condition());
        }
        for (key, value) in batch.into_writes() {
            transaction = match value {
                Some(value) => transaction.put(key, value),
                None => transaction.delete(key),
            };
        }
        let ended = manager.client.commit(&transaction);
        self.commits += 1;
        self.observe();
        let manager = &mut self.managers[index];
        match ended {
            Ok(Committed::Committed { .. }) => true,
            Err(_) if mutation == Some(Mutation::KeepMemory) => false,
            Ok(Committed::Conflict { .. }) => {
                manager.leads = None;
                false
            }
            Err(StoreError::Refused(refusal)) => panic!("{refusal}"),
            Err(_) => {
                manager.leads = None;
                manager.unfenced = Some(leadership);
                false
            }
        }
    }

    /// How the next calls to the store end.
    fn arm_faults(&mut self, index: usize) {
        let fault = match self.chance(40) {
            0 => Fault::Before,
            1 => Fault::After,
            2 => Fault::Lost,
            3 => Fault::Late,
            _ => Fault::None,
        };
        let client = &self.managers[index].client;
        if self.is_closing() || fault == Fault::None {
            client.clear_hook();
        } else {
            client.set_hook(move |operation| match operation {
                Operation::Commit(_) | Operation::Fence | Operation::List(_) => fault,
                _ => Fault::None,
            });
        }
    }
}
