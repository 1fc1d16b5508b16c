//! Requests that no GPU of the pool can ever serve are refused when they are made.
//!
//! A request counts as possible if the GPUs that the pool knows could serve it with every one of them healthy, free and in
//! its box: a GPU that is bad, or whose box is dead, may come back. A pool that knows no GPU yet refuses nothing, because its
//! first box may be starting.

use super::parts::LargestPart;
use super::queue::Wish;
use super::stock::Tightness;
use super::{Ledger, Refusal};
use pool_api::{BoxKind, Gpu, GpuId, LeaseRequest, Model, Name, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// Why no GPU of this pool can ever serve a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Impossible {
    /// No box has brought such a model.
    #[error("this pool has no model {model}; it has {}", listed(known))]
    Model {
        /// What was asked for.
        model: Model,
        /// What there is.
        known: Vec<Model>,
    },
    /// No box has seats for guests.
    #[error("an offline lease gets a seat for guests, and no box of this pool has any")]
    Seats,
    /// Only parts of GPUs are there, and a whole one or a larger part is asked for.
    #[error(
        "this pool lends {what} in parts alone, and the largest part has {largest}; {asked} is asked for"
    )]
    Parts {
        /// The model, or "GPUs".
        what: String,
        /// The largest.
        largest: LargestPart,
        /// What was asked for, in words.
        asked: String,
    },
    /// No GPU is that large.
    #[error(
        "no {what} of this pool has {} of memory; the largest has {}", gibibytes(*asked_bytes), gibibytes(*most_bytes)
    )]
    Memory {
        /// The model, or "GPU".
        what: String,
        /// What was asked for.
        asked_bytes: u64,
        /// The memory of the largest.
        most_bytes: u64,
    },
    /// No box is of that kind.
    #[error("no box of this pool joins {what} by {kind}")]
    Kind {
        /// What is to be joined.
        what: String,
        /// How.
        kind: &'static str,
    },
    /// There are fewer.
    #[error("{asked} {what} are asked for, and {place} has {most} at most")]
    Count {
        /// What was asked for.
        what: String,
        /// How many.
        asked: u32,
        /// How many there are at most.
        most: u32,
        /// Where they would have to be.
        place: &'static str,
    },
    /// A GPU that the request names is not in the pool, or is not what the request asks for.
    #[error("{gpu} is asked for by name, but {why}")]
    Given {
        /// The GPU.
        gpu: GpuId,
        /// Why it can never serve the request.
        why: &'static str,
    },
    /// The limits of the tenant are lower.
    #[error("{asked} of {model} are asked for, and tenant {tenant} may have {limit} at most")]
    Limit {
        /// The tenant.
        tenant: Name,
        /// The model.
        model: Model,
        /// How many GPUs, in words.
        asked: String,
        /// The limit.
        limit: u32,
    },
}

impl Impossible {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Model { .. } => "check the name, or leave --model out to take any",
            Self::Seats => {
                "start a box with `dxpu box --guests 1 --guest-memory SIZE`, or ask for another class"
            }
            Self::Parts { .. } => {
                "ask for a share that a part has (--share MILLI,SIZE), or start a box without --shares"
            }
            Self::Memory { .. } => "ask for less memory, or add a box with larger GPUs",
            Self::Kind { .. } => "leave --kind and --topology out, or add such a box",
            Self::Count { .. } => "ask for fewer GPUs, or allow more boxes with --topology any, or add boxes",
            Self::Given { .. } => "see `dxpu gpu ls`, and name other GPUs or none",
            Self::Limit { .. } => {
                "ask for fewer, or have an admin allow more: dxpu tenant set NAME --limit MODEL=N"
            }
        }
    }
}

impl Ledger {
    /// Whether the GPUs that the pool knows could ever serve this.
    pub(super) fn check_possible(&self, tenant: &Name, wish: &Wish) -> Result<(), Refusal> {
        let classes = self.classes_for(wish);
        self.check_given(wish).map_err(Refusal::Impossible)?;
        self.check_limits(tenant, wish)?;
        // Nearly every request ends here, without a look at single GPUs.
        if self.stock.feasible(&wish.need(classes)) {
            return Ok(());
        }
        self.check_all_known(wish).map_err(Refusal::Impossible)
    }

    /// Refuses what is beyond the limit of every model that would do.
    fn check_limits(&self, tenant: &Name, wish: &Wish) -> Result<(), Refusal> {
        let Some(entry) = self.tenants.get(tenant) else { return Ok(()) };
        let classes = self.stock.classes().iter().filter(|class| wish.accepts(class));
        let models: BTreeSet<&Model> = classes.map(|class| &class.model).collect();
        let asked_milli = u64::from(wish.gpus) * u64::from(wish.milli);
        let limit_of = |model: &Model| entry.record.quotas.get(model).and_then(|quota| quota.limit);
        let is_beyond = |limit: u32| u64::from(limit) * u64::from(crate::GPU_MILLI) < asked_milli;
        let mut last = None;
        for model in models {
            match limit_of(model).filter(|limit| is_beyond(*limit)) {
                Some(limit) => last = Some((model, limit)),
                None => return Ok(()),
            }
        }
        let Some((model, limit)) = last else { return Ok(()) };
        Err(Refusal::Impossible(Impossible::Limit {
            tenant: tenant.clone(),
            model: model.clone(),
            asked: super::explain::thousandths(asked_milli),
            limit,
        }))
    }

    fn check_all_known(&self, wish: &Wish) -> Result<(), Impossible> {
        let known = self.boxes.values().filter(|owner| owner.record.revoked.is_none());
        let known: Vec<(BoxKind, &Gpu)> = known
            .flat_map(|owner| owner.slots.values().map(|entry| (owner.record.kind, &*entry.gpu)))
            .filter(|(_, gpu)| wish.host.is_some() || !gpu.only_pcie)
            .collect();
        if known.is_empty() {
            return Ok(());
        }
        let known: Vec<_> =
            known.into_iter().filter(|(_, gpu)| wish.accepts_guest(gpu.guest.is_some())).collect();
        if known.is_empty() {
            return Err(Impossible::Seats);
        }
        let of_model: Vec<_> = known.iter().filter(|(_, gpu)| wish.accepts_model(&gpu.model)).collect();
        let what = wish.model.as_ref().map_or_else(|| "GPU".to_owned(), ToString::to_string);
        if let (true, Some(model)) = (of_model.is_empty(), &wish.model) {
            let known: BTreeSet<&Model> = known.iter().map(|(_, gpu)| &gpu.model).collect();
            return Err(Impossible::Model {
                model: model.clone(),
                known: known.into_iter().cloned().collect(),
            });
        }
        let of_model = check_parts(wish, of_model)?;
        let most_bytes = of_model.iter().map(|(_, gpu)| self.most_for(wish, gpu)).max().unwrap_or(0);
        if !wish.accepts_memory(most_bytes) {
            return Err(Impossible::Memory { what, asked_bytes: wish.memory_bytes, most_bytes });
        }
        let what = if wish.model.is_some() { what } else { "GPUs".to_owned() };
        let fitting: Vec<_> = of_model
            .iter()
            .filter(|(kind, gpu)| wish.accepts_memory(self.most_for(wish, gpu)) && wish.accepts_kind(*kind))
            .collect();
        if fitting.is_empty() {
            let is_nvlink = wish.topology == Topology::Nvlink || wish.kind == Some(BoxKind::Nvlink);
            let kind = if is_nvlink { "NVLink" } else { "PCIe alone" };
            return Err(Impossible::Kind { what, kind });
        }
        let tightness = wish.need(0).tightness;
        // All GPUs of a lease are of one model, and as close together as it asks.
        let mut together: BTreeMap<_, u32> = BTreeMap::new();
        for (_, gpu) in fitting {
            let of_box = (tightness != Tightness::Anywhere).then_some(&gpu.box_name);
            let of_bin = (tightness == Tightness::OneBin).then_some((gpu.memory_bytes, gpu.nvlink_group));
            *together.entry((&gpu.model, of_box, of_bin)).or_default() += 1;
        }
        let most = together.into_values().max().unwrap_or(0);
        if most < wish.gpus {
            let place = match tightness {
                Tightness::Anywhere => "this pool",
                Tightness::OneBox => "one box of this pool",
                Tightness::OneBin => "one NVLink group of this pool",
            };
            return Err(Impossible::Count { what, asked: wish.gpus, most, place });
        }
        Ok(())
    }
}

/// A GPU, and how its box joins it with others.
type Known<'a> = (BoxKind, &'a Gpu);

/// Leaves out parts that a lease cannot have; an error if nothing is left.
fn check_parts<'a>(wish: &Wish, known: Vec<&'a Known<'a>>) -> Result<Vec<&'a Known<'a>>, Impossible> {
    let (will_do, others): (Vec<&Known<'_>>, Vec<&Known<'_>>) =
        known.into_iter().partition(|(_, gpu)| wish.accepts_part(gpu));
    match LargestPart::of(others.into_iter().map(|(_, gpu)| *gpu)) {
        Some(largest) if will_do.is_empty() => Err(Impossible::Parts {
            what: wish.model.as_ref().map_or_else(|| "GPUs".to_owned(), ToString::to_string),
            largest,
            asked: match wish.is_share() {
                true => LargestPart { milli: wish.milli, memory_bytes: wish.memory_bytes }.to_string(),
                false => "a whole GPU".to_owned(),
            },
        }),
        _ => Ok(will_do),
    }
}

impl Ledger {
    /// The memory that a lease of this class gets of a GPU.
    fn most_for(&self, wish: &Wish, gpu: &Gpu) -> u64 {
        self.memory_for(&gpu.id, &LeaseRequest { class: wish.class, ..LeaseRequest::default() })
    }
}

/// `A100, H200 and L40S`.
fn listed(models: &[Model]) -> String {
    let names: Vec<String> = models.iter().map(ToString::to_string).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

/// `141 GiB`, `0.5 GiB`.
pub(super) fn gibibytes(bytes: u64) -> String {
    let gib = bytes as f64 / f64::from(1 << 30);
    if gib >= 10.0 || gib.fract() == 0.0 { format!("{gib:.0} GiB") } else { format!("{gib:.1} GiB") }
}
