//! The GPUs of a box.

use super::nvml::{Nvml, Sensors};
use crate::error::AgentError;
use driver_soft::SoftConfig;
use pool_api::{Counters, FIRST_GUEST_SLOT, Guest, Model, Part};
use std::sync::Arc;

/// What a slot holds.
#[derive(Clone)]
pub(crate) struct Gpu {
    pub(crate) slot: u8,
    pub(crate) model: Model,
    pub(crate) memory_bytes: u64,
    pub(crate) uuid: String,
    pub(crate) nvlink_group: Option<u32>,
    pub(crate) what: What,
    /// It is a seat for guests on the GPU of another slot, whose UUID it has.
    pub(crate) guest: Option<Guest>,
    /// It is a part of a GPU, whose UUID it has.
    pub(crate) part: Option<Part>,
    /// Memory that a seat on it has; 0 without one.
    pub(crate) seat_bytes: u64,
    /// Memory of the GPU that its lease and its guest may have together, if both are promised more than that.
    pub(crate) capacity: Option<u64>,
}

/// What the seats of a box are like.
#[derive(Clone, Copy)]
pub(crate) struct SeatPlan {
    pub(crate) bytes: u64,
    pub(crate) any_tenant: bool,
    /// An online lease has all memory of the GPU beside it.
    pub(crate) overcommit: bool,
}

/// How a GPU is driven.
#[derive(Clone)]
pub(crate) enum What {
    /// In software.
    Soft {
        /// What tells it from others.
        identity: String,
    },
    /// By NVIDIA's driver.
    Nvidia(Arc<Sensors>),
}

/// A reading of a GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    pub(crate) counters: Option<Counters>,
    /// What is wrong with it.
    pub(crate) fault: Option<String>,
}

/// GPUs in software.
pub(crate) fn soft(box_name: &str, count: u8, memory_bytes: u64, model: &Model) -> Vec<Gpu> {
    let one = |slot: u8| {
        let identity = format!("{box_name}/{slot}");
        let config = SoftConfig { identity: identity.clone(), ..SoftConfig::default() };
        Gpu {
            slot,
            model: model.clone(),
            memory_bytes,
            uuid: uuid_text(&config.uuid(0)),
            nvlink_group: None,
            what: What::Soft { identity },
            guest: None,
            part: None,
            seat_bytes: 0,
            capacity: None,
        }
    };
    (0..count).map(one).collect()
}

/// The GPUs of this machine.
pub(crate) fn nvidia() -> anyhow::Result<Vec<Gpu>> {
    let nvml = Arc::new(Nvml::open().map_err(AgentError::NoDriver)?);
    let found = nvml.gpus()?;
    if found.is_empty() {
        return Err(AgentError::NoGpu.into());
    }
    let gpu = |(slot, found): (usize, super::nvml::Found)| Gpu {
        slot: slot as u8,
        model: model_of(&found.name),
        memory_bytes: found.memory_bytes,
        uuid: found.uuid.clone(),
        nvlink_group: found.is_nvlinked.then_some(0),
        what: What::Nvidia(Arc::new(Sensors::new(nvml.clone(), found.uuid))),
        guest: None,
        part: None,
        seat_bytes: 0,
        capacity: None,
    };
    Ok(found.into_iter().take(pool_api::SLOTS_PER_BOX_MAX.into()).enumerate().map(gpu).collect())
}

/// The GPUs of a box, and a seat for guests on each that has a slot for it.
pub(crate) fn with_seats(gpus: Vec<Gpu>, plan: SeatPlan) -> Result<Vec<Gpu>, AgentError> {
    let SeatPlan { bytes: seat_bytes, any_tenant, overcommit } = plan;
    let least = gpus.iter().map(|gpu| gpu.memory_bytes).min().unwrap_or(u64::MAX);
    if seat_bytes == 0 || seat_bytes >= least {
        return Err(AgentError::GuestMemory { asked_bytes: seat_bytes, least_bytes: least });
    }
    let has_seat = |gpu: &&Gpu| gpu.slot < FIRST_GUEST_SLOT;
    let seat = |gpu: &Gpu| Gpu {
        slot: FIRST_GUEST_SLOT + gpu.slot,
        memory_bytes: seat_bytes,
        nvlink_group: None,
        guest: Some(Guest { of: gpu.slot, any_tenant, overcommit }),
        capacity: overcommit.then_some(gpu.memory_bytes),
        ..gpu.clone()
    };
    let seats: Vec<Gpu> = gpus.iter().filter(has_seat).map(seat).collect();
    // A slot beyond those that have seats would have the number of a seat.
    let hosts = gpus.into_iter().filter(|gpu| has_seat(&gpu)).map(|gpu| Gpu {
        seat_bytes,
        capacity: overcommit.then_some(gpu.memory_bytes),
        ..gpu
    });
    Ok(hosts.chain(seats).collect())
}

/// What a session takes of an NVIDIA GPU beyond what its program allocates: a driver context, about half a GiB, and its modules.
const SESSION_BYTES: u64 = 640 << 20;
/// Sessions of a part that have a driver context: that of a program, and the two that its worker keeps ready.
const SESSIONS_OF_PART: u64 = 3;

/// The parts of the GPUs of a box, instead of the GPUs.
pub(crate) fn in_parts(gpus: Vec<Gpu>, count: u8) -> Result<Vec<Gpu>, AgentError> {
    let most = pool_api::SLOTS_PER_BOX_MAX / count.max(1);
    if gpus.len() > usize::from(most) {
        return Err(AgentError::TooManyParts { gpus: gpus.len(), count, most });
    }
    let mut parts = Vec::new();
    for gpu in gpus {
        let memory_bytes = part_bytes(gpu.memory_bytes, count, gpu.what.reserve_bytes())?;
        let part = Some(Part::new(gpu.slot, count));
        let slots = (0..count).map(|k| gpu.slot * count + k);
        parts.extend(slots.map(|slot| Gpu { slot, memory_bytes, part, ..gpu.clone() }));
    }
    Ok(parts)
}

/// The memory that leases have of each part. It is the same in each run of the agent: by it workers are found again.
fn part_bytes(gpu_bytes: u64, count: u8, reserve_bytes: u64) -> Result<u64, AgentError> {
    let left = (gpu_bytes / u64::from(count)).checked_sub(reserve_bytes);
    left.filter(|left| *left > 0).ok_or(AgentError::PartMemory { gpu_bytes, count, reserve_bytes })
}

impl What {
    /// What each part of a GPU keeps from leases, because sessions need it.
    fn reserve_bytes(&self) -> u64 {
        match self {
            Self::Soft { .. } => 0,
            Self::Nvidia(_) => SESSIONS_OF_PART * SESSION_BYTES,
        }
    }
}

impl Gpu {
    /// The slot that the page of its GPU is named by: its own, unless it is a seat or a part.
    pub(crate) fn host_slot(&self) -> u8 {
        let host = self.guest.map_or(self.slot, |guest| guest.of);
        self.part.map_or(host, |part| part.slots().start)
    }

    /// Whether leases of other slots work on its GPU: it is a seat or a part.
    pub(crate) fn is_beside_others(&self) -> bool {
        self.guest.is_some() || self.part.is_some()
    }

    /// Whether merged contexts of it need an MPS daemon. A GPU in software models one.
    pub(crate) fn needs_daemon(&self) -> bool {
        matches!(self.what, What::Nvidia(_))
    }

    /// Whether sessions of several workers use its GPU, and see each other in a page.
    pub(crate) fn has_page(&self) -> bool {
        self.is_beside_others() || self.seat_bytes > 0
    }

    /// The slots that work when this one does, as far as the GPU is concerned: those of its parts, or its own.
    pub(crate) fn slots_alike(&self) -> std::ops::Range<u8> {
        self.part.map_or(self.slot..self.slot + 1, Part::slots)
    }

    /// What it measures now, and whether that is alarming.
    pub(crate) fn read(&self) -> Reading {
        match &self.what {
            // A GPU in software has no sensors; whether it works shows when it is used.
            What::Soft { .. } => Reading::default(),
            What::Nvidia(sensors) => self.of_its_own(sensors.read()),
        }
    }
}

impl Gpu {
    /// What sensors tell is of the whole GPU. Memory in use would look like that of the lease on one part.
    fn of_its_own(&self, mut reading: Reading) -> Reading {
        if let Some(counters) = reading.counters.as_mut().filter(|_| self.part.is_some()) {
            counters.memory_used_bytes = None;
        }
        reading
    }
}

/// The model's name as people ask for it: `H200`, not `NVIDIA H200`.
fn model_of(name: &str) -> Model {
    let plain: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || " ._+-".contains(c) { c } else { ' ' })
        .collect();
    let short = plain.trim().strip_prefix("NVIDIA ").unwrap_or(plain.trim()).trim();
    let cut: String = short.chars().take(64).collect();
    Model::new(cut.trim_matches(|c: char| !c.is_ascii_alphanumeric()))
        .unwrap_or_else(|_| Model::new("unknown").expect("a plain word"))
}

/// A UUID as NVML writes it.
pub(crate) fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = "GPU".to_owned();
    for (at, byte) in uuid.iter().enumerate() {
        if matches!(at, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text += &format!("{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_named_as_people_ask_for_them() {
        for (name, model) in [
            ("NVIDIA H200", "H200"),
            ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
            ("Tesla V100-SXM2-32GB", "Tesla V100-SXM2-32GB"),
            ("NVIDIA GB200 (x)", "GB200  x"),
            ("", "unknown"),
        ] {
            assert_eq!(model_of(name).as_str(), model, "{name}");
        }
    }

    #[test]
    fn a_seat_is_on_its_gpu_and_has_memory_of_its_own() {
        let model = Model::new("soft").unwrap();
        let gpus = || soft("a", 2, 8 << 30, &model);
        let plan = |bytes, overcommit| SeatPlan { bytes, any_tenant: true, overcommit };
        let all = with_seats(gpus(), plan(2 << 30, false)).unwrap();
        let seen: Vec<_> =
            all.iter().map(|gpu| (gpu.slot, gpu.host_slot(), gpu.memory_bytes >> 30)).collect();
        assert_eq!(seen, [(0, 0, 8), (1, 1, 8), (32, 0, 2), (33, 1, 2)]);
        assert_eq!((&all[2].uuid, all[0].seat_bytes >> 30), (&all[0].uuid, 2));
        assert!(
            all.iter().all(|gpu| gpu.capacity.is_none()),
            "no memory is promised twice unless it is asked for"
        );
        let twice = with_seats(gpus(), plan(2 << 30, true)).unwrap();
        let seen = twice.iter().map(|gpu| (gpu.capacity, gpu.guest.is_none_or(|guest| guest.overcommit)));
        assert!(
            seen.eq(std::iter::repeat_n((Some(8 << 30), true), 4)),
            "the GPU has the same memory for both"
        );
        assert!(
            with_seats(gpus(), plan(8 << 30, true)).is_err() && with_seats(gpus(), plan(0, false)).is_err()
        );
    }

    #[test]
    fn parts_have_the_gpus_name_and_their_own_memory_and_slots() {
        let model = Model::new("soft").unwrap();
        let all = in_parts(soft("a", 2, 8 << 30, &model), 4).unwrap();
        let seen: Vec<_> =
            all.iter().map(|gpu| (gpu.slot, gpu.host_slot(), gpu.memory_bytes >> 30)).collect();
        let expected =
            [(0, 0, 2), (1, 0, 2), (2, 0, 2), (3, 0, 2), (4, 4, 2), (5, 4, 2), (6, 4, 2), (7, 4, 2)];
        assert_eq!(seen, expected);
        assert_eq!((&all[3].uuid, all[3].part), (&all[0].uuid, Some(Part { of: 0, milli: 250 })));
        assert_ne!(all[4].uuid, all[0].uuid);
        assert!(all.iter().all(|part| part.has_page() && part.is_beside_others()));
        assert_eq!((all[5].slots_alike(), soft("a", 1, 1, &model)[0].slots_alike()), (4..8, 0..1));
    }

    #[test]
    fn more_parts_than_a_box_has_slots_are_refused_in_words() {
        let model = Model::new("soft").unwrap();
        assert_eq!(in_parts(soft("a", 8, 8 << 30, &model), 8).unwrap().last().unwrap().slot, 63);
        let refused = in_parts(soft("a", 9, 8 << 30, &model), 8).err().unwrap().to_string();
        assert_eq!(refused, "9 GPUs in 8 parts each are more than a box has slots for: 8 GPUs at most");
    }

    #[test]
    fn the_parts_of_a_gpu_leave_room_for_the_contexts_of_their_sessions() {
        let (h200, reserve) = (140 << 30, SESSIONS_OF_PART * SESSION_BYTES);
        for count in 2..=pool_api::PARTS_PER_GPU_MAX {
            let lent = part_bytes(h200, count, reserve).unwrap() * u64::from(count);
            assert!(lent + u64::from(count) * reserve <= h200, "{count} parts have {lent} bytes together");
        }
        let quarter = part_bytes(h200, 4, reserve).unwrap();
        assert!(quarter >= 33 << 30, "a lease with 32 GiB fits into a quarter, as the documents show it");
        let refused = part_bytes(8 << 30, 8, reserve).unwrap_err().to_string();
        assert!(refused.contains("8 parts of 8589934592 bytes"), "{refused}");
        assert!(part_bytes(reserve * 2, 2, reserve).is_err(), "nothing is left for leases");
    }

    #[test]
    fn a_part_tells_no_memory_of_the_whole_gpu() {
        let model = Model::new("soft").unwrap();
        let read = || {
            let counters = Counters { memory_used_bytes: Some(7), power_mw: Some(9), ..Counters::default() };
            Reading { counters: Some(counters), fault: Some("Xid 79".to_owned()) }
        };
        let part = in_parts(soft("a", 1, 8 << 30, &model), 2).unwrap().remove(1).of_its_own(read());
        let told = part.counters.unwrap();
        assert_eq!((told.memory_used_bytes, told.power_mw, part.fault.is_some()), (None, Some(9), true));
        assert_eq!(soft("a", 1, 8 << 30, &model)[0].of_its_own(read()), read());
    }

    #[test]
    fn soft_gpus_of_different_boxes_and_slots_are_different_gpus() {
        let model = Model::new("soft").unwrap();
        let (a, b) = (soft("a", 2, 1 << 30, &model), soft("b", 2, 1 << 30, &model));
        let mut uuids: Vec<&str> = a.iter().chain(&b).map(|gpu| gpu.uuid.as_str()).collect();
        uuids.sort_unstable();
        uuids.dedup();
        assert_eq!(uuids.len(), 4);
        assert!(uuids[0].starts_with("GPU-") && uuids[0].len() == 40, "{}", uuids[0]);
        assert_eq!(soft("a", 1, 1 << 30, &model)[0].uuid, a[0].uuid, "the same after a restart");
    }
}
