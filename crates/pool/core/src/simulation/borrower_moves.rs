//! A borrower whose program outlives losses: its words about places.

use super::network::Happening;
use super::world::World;
use crate::Command;
use pool_api::{GpuId, Grant, Lease, LeaseState, Moving, Purpose};

impl World {
    /// What the keeper of a program would say now, if anything. Tells whether it said something.
    pub(super) fn speak_of_places(&mut self, index: usize, lease: &Lease) -> bool {
        if lease.request.survive.is_none() {
            return false;
        }
        match lease.state {
            LeaseState::Parked if self.chance(6) == 0 => {
                self.question(index, Command::Resume { lease: lease.id });
                true
            }
            LeaseState::Granted => {
                self.speak_of_loss(index, lease)
                    || self.speak_of_second_place(index, lease)
                    || self.speak_of_parking(index, lease)
            }
            _ => false,
        }
    }

    /// A session is over that the borrower did not end; now and then it only believes so.
    fn speak_of_loss(&mut self, index: usize, lease: &Lease) -> bool {
        let thrown_out = &self.borrowers[index].thrown_out;
        let is_out = |grant: &&Grant| thrown_out.contains(&(grant.gpu.clone(), grant.epoch));
        let lost = lease.grants.iter().find(is_out).map(|grant| (grant.gpu.clone(), grant.epoch));
        let wrong = self.chance(60) == 0;
        let lost = lost.or_else(|| wrong.then(|| (lease.grants[0].gpu.clone(), lease.grants[0].epoch)));
        let Some((gpu, epoch)) = lost else { return false };
        // A word may be about a grant that is long over.
        let epoch = if self.chance(8) == 0 { epoch.saturating_sub(1) } else { epoch };
        self.checker.words += 1;
        self.checker.spoken(lease.id, &gpu, epoch);
        self.question(index, Command::Lost { lease: lease.id, gpu, epoch, why: "simulated".into() });
        true
    }

    fn speak_of_second_place(&mut self, index: usize, lease: &Lease) -> bool {
        let Some(Moving { from, to, purpose, .. }) = &lease.moving else { return false };
        let (lease, gpu, epoch) = (lease.id, to.gpu.clone(), to.epoch);
        let is_there = self.borrowers[index].inside.contains(&(gpu.clone(), epoch));
        match (self.chance(4), is_there, purpose) {
            (0, ..) => {
                let why = "simulated".to_owned();
                self.question(index, Command::Stay { lease, gpu, epoch, why });
            }
            (_, true, Purpose::Drill) => {
                self.question(index, Command::Stay { lease, gpu, epoch, why: "drilled".into() });
            }
            (_, true, _) => {
                self.checker.arrivals += 1;
                self.question(index, Command::Moved { lease, gpu, epoch });
            }
            (_, false, _) => {
                // The program ends its session at the first place before it goes on at the second.
                let life = self.borrowers[index].life;
                if *purpose != Purpose::Drill {
                    self.leave(index, life, from);
                }
                self.send(Happening::Knock { borrower: index, life, gpu, lease, epoch });
            }
        }
        true
    }

    fn leave(&mut self, index: usize, life: u64, gpu: &GpuId) {
        self.borrowers[index].inside.retain(|(inside, _)| inside != gpu);
        self.hang_up_at(index, life, gpu);
    }

    fn speak_of_parking(&mut self, index: usize, lease: &Lease) -> bool {
        let is_idle = self.chance(40) == 0;
        if !lease.suspend_wanted && !is_idle {
            return false;
        }
        if self.chance(4) == 0 {
            let why = "simulated".to_owned();
            self.question(index, Command::KeepRunning { lease: lease.id, why });
            return true;
        }
        let life = self.borrowers[index].life;
        for grant in &lease.grants {
            self.leave(index, life, &grant.gpu);
        }
        let Grant { gpu, epoch, .. } = lease.grants[0].clone();
        self.checker.parks += 1;
        self.question(index, Command::Park { lease: lease.id, gpu, epoch, image_bytes: 1 << 30 });
        true
    }
}
