//! The paper's figures beside the simulated ones, and what each of them rests on.

use super::constants::Constants;
use super::cores::{core_knee, core_pipeline, core_rates};
use super::experiments::{Pipeline, Rate, behind_one, knee, pipeline, rates};
use super::traffic::Traffic;
use super::world::Layout;

/// A figure of the paper, simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// A short name for JSON.
    pub name: &'static str,
    /// Where it stands in the paper.
    pub source: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// What the paper measured.
    pub paper: f64,
    /// What the simulation over the real cores gives.
    pub simulated: f64,
    /// What the model gives, which says what it rests on.
    pub modelled: f64,
    /// How close it must come, in percent; `None`: it is shown, not promised.
    pub within_pct: Option<f64>,
    /// What it rests on, the strongest first.
    pub rests_on: Vec<Reliance>,
    /// What to know about it.
    pub note: &'static str,
}

impl Claim {
    /// Simulated against measured, in percent.
    pub fn error_pct(&self) -> f64 {
        100.0 * (self.simulated / self.paper - 1.0)
    }

    /// Whether it comes as close as it must.
    pub fn is_met(&self) -> bool {
        self.within_pct.is_none_or(|within| self.error_pct().abs() <= within)
    }
}

/// How much a result moves with a constant.
#[derive(Clone, Debug, PartialEq)]
pub struct Reliance {
    /// Which constant.
    pub constant: &'static str,
    /// Whether the paper publishes it.
    pub is_published: bool,
    /// Percent that the result moves for each percent of the constant.
    pub elasticity: f64,
}

/// All of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The constants used.
    pub constants: Constants,
    /// The paper's figures.
    pub claims: Vec<Claim>,
    /// What is not in the paper: a name, the figure in GB/s.
    pub outlook: Vec<(&'static str, f64)>,
    /// Promised figures that are missed, in words.
    pub missed: Vec<String>,
}

struct Figure {
    name: &'static str,
    source: &'static str,
    unit: &'static str,
    paper: f64,
    within_pct: Option<f64>,
    note: &'static str,
}

/// Where starting times come from; every seed gives the same figures to a fraction of a percent.
const SEED: u64 = 1;

/// The figures, in the order of [`simulate`]'s results.
const FIGURES: [Figure; FIGURE_COUNT] = [
    Figure {
        name: "fig3_native_busy",
        source: "Fig. 3a",
        unit: "of the wire",
        paper: 1.0,
        within_pct: Some(5.0),
        note: "five tags keep the wire busy in the server",
    },
    Figure {
        name: "fig3_remote_busy",
        source: "Fig. 3b, by Eq. 1",
        unit: "of the wire",
        // 5 tags * 4096 B / 6.8 us against the wire: Fig. 3b has no number, so Eq. 1 stands in for it.
        paper: 5.0 * 4096.0 / 6.8e3 / 11.28,
        within_pct: None,
        note: "new reads wait for a tag; Eq. 1 leaves out the data's own time on the wire, which large reads show",
    },
    Figure {
        name: "h2d_gbps",
        source: "Table 7",
        unit: "GB/s",
        paper: 2.7,
        within_pct: Some(5.0),
        note: "tags run out: Eq. 1",
    },
    Figure {
        name: "d2h_gbps",
        source: "Table 7",
        unit: "GB/s",
        paper: 11.6,
        within_pct: Some(5.0),
        note: "writes need no tag; the proxy's slots are the limit, and their number was chosen on this figure",
    },
    Figure {
        name: "h2d_native_gbps",
        source: "Table 7",
        unit: "GB/s",
        paper: 11.2,
        within_pct: Some(5.0),
        note: "the wire with completions of 64 bytes; its efficiency was chosen on this figure and the next",
    },
    Figure {
        name: "d2h_native_gbps",
        source: "Table 7",
        unit: "GB/s",
        paper: 12.5,
        within_pct: Some(5.0),
        note: "the wire with writes of 128 bytes",
    },
    Figure {
        name: "h2d_second_build_gbps",
        source: "section 3.5.1",
        unit: "GB/s",
        paper: 3.9,
        within_pct: None,
        note: "Eq. 1 itself gives 3.66: the paper's own figures imply 149 tags here and 143 at 6.8 us",
    },
    Figure {
        name: "host_writes_gbps",
        source: "section 5.1",
        unit: "GB/s",
        paper: 9.44,
        within_pct: Some(5.0),
        note: "slots wait for the GPU's credits; nothing was fitted to this figure",
    },
    Figure {
        name: "table12_h2d_1_gpu_gbps",
        source: "Table 12",
        unit: "GB/s",
        paper: 1.5,
        within_pct: None,
        note: "one GPU alone, with the load that the four-GPU row shows: the paper's lone GPU moved about a tenth more",
    },
    Figure {
        name: "table12_h2d_2_gpus_gbps",
        source: "Table 12",
        unit: "GB/s",
        paper: 2.6,
        within_pct: Some(10.0),
        note: "two share the proxy",
    },
    Figure {
        name: "table12_h2d_4_gpus_gbps",
        source: "Table 12",
        unit: "GB/s",
        paper: 4.9,
        within_pct: Some(10.0),
        note: "four: the proxy still follows; the load of a GPU was chosen on this row",
    },
    Figure {
        name: "table12_h2d_8_gpus_gbps",
        source: "Table 12",
        unit: "GB/s",
        paper: 8.4,
        within_pct: Some(10.0),
        note: "read requests and writes together fill the slots that Table 7's writes alone fill: the same 256",
    },
    Figure {
        name: "table12_d2h_1_gpu_gbps",
        source: "Table 12",
        unit: "GB/s",
        paper: 0.8,
        within_pct: None,
        note: "the paper's one GPU writes more per byte read than its four do, whose load this is",
    },
    Figure {
        name: "table12_d2h_2_gpus_gbps",
        source: "Table 12",
        unit: "GB/s",
        paper: 1.3,
        within_pct: None,
        note: "likewise",
    },
    Figure {
        name: "table12_d2h_4_gpus_gbps",
        source: "Table 12",
        unit: "GB/s",
        paper: 2.3,
        within_pct: Some(10.0),
        note: "chosen, as above",
    },
    Figure {
        name: "table12_d2h_8_gpus_gbps",
        source: "Table 12",
        unit: "GB/s",
        paper: 3.6,
        within_pct: Some(10.0),
        note: "as the reads of eight GPUs",
    },
    Figure {
        name: "knee_4_over_2",
        source: "Table 12",
        unit: "times",
        paper: 4.9 / 2.6,
        within_pct: Some(10.0),
        note: "before the knee: twice the GPUs, about twice the bytes",
    },
    Figure {
        name: "knee_8_over_4",
        source: "Table 12",
        unit: "times",
        paper: 8.4 / 4.9,
        within_pct: Some(10.0),
        note: "the knee: twice the GPUs, far from twice the bytes",
    },
    Figure {
        name: "p2p_across_proxies_ratio",
        source: "Fig. 7",
        unit: "of one bridge",
        paper: 0.74,
        within_pct: Some(5.0),
        note: "writes to a GPU across proxies: slots wait for its credits, as for the host's writes; nothing was fitted",
    },
];

const FIGURE_COUNT: usize = 19;

/// A way to simulate.
#[derive(Clone, Copy)]
struct Engine {
    rates: fn(&Constants, Layout, &[Traffic], u64) -> Rate,
    knee: fn(&Constants, usize, usize, u64) -> Rate,
    pipeline: fn(&Constants, bool) -> Pipeline,
}

const CORES: Engine = Engine { rates: core_rates, knee: core_knee, pipeline: core_pipeline };
const MODEL: Engine = Engine { rates, knee, pipeline };

/// Every figure, in the order of [`FIGURES`]; runs that serve several figures are made once.
fn simulate(engine: Engine, constants: &Constants) -> [f64; FIGURE_COUNT] {
    let remote = |traffic| (engine.rates)(constants, behind_one(1), &[traffic], SEED);
    let native = |traffic| (engine.rates)(constants, Layout::Native, &[traffic], SEED);
    let [one, two, four, eight] = [1, 2, 4, 8].map(|gpus| (engine.knee)(constants, gpus, 1, SEED));
    let second = (engine.rates)(&constants.second_build(), behind_one(1), &[Traffic::Read], SEED);
    [
        (engine.pipeline)(constants, false).busy,
        (engine.pipeline)(constants, true).busy,
        remote(Traffic::Read).down_gbps,
        remote(Traffic::Write).up_gbps,
        native(Traffic::Read).down_gbps,
        native(Traffic::Write).up_gbps,
        second.down_gbps,
        remote(Traffic::HostWrites).down_gbps,
        one.down_gbps,
        two.down_gbps,
        four.down_gbps,
        eight.down_gbps,
        one.up_gbps,
        two.up_gbps,
        four.up_gbps,
        eight.up_gbps,
        four.down_gbps / two.down_gbps,
        eight.down_gbps / four.down_gbps,
        peers(engine, constants, true) / peers(engine, constants, false),
    ]
}

/// One GPU writes another's memory: across two pairs of proxies, or under one bridge.
fn peers(engine: Engine, constants: &Constants, is_remote: bool) -> f64 {
    let layout = if is_remote { Layout::Remote { proxy_of: vec![0, 1] } } else { Layout::Native };
    (engine.rates)(constants, layout, &[Traffic::WritePeer { peer: 1 }, Traffic::Idle], SEED).peer_gbps
}

/// A result rests on a constant if it moves at least this much with it.
const ELASTICITY_MIN: f64 = 0.1;

/// Simulates every figure of the paper that the fabric decides over the real cores, and finds out what each rests on by making one
/// constant after the other a little worse in the model.
pub fn report(constants: &Constants) -> Report {
    let worsened: Vec<[f64; FIGURE_COUNT]> =
        Constants::ALL.iter().map(|constant| simulate(MODEL, &constant.worsened(constants))).collect();
    let mut report = compare(constants);
    for (index, claim) in report.claims.iter_mut().enumerate() {
        claim.rests_on = rests_on(claim.modelled, worsened.iter().map(|values| values[index]));
    }
    report
}

/// The same without asking what the figures rest on.
pub fn compare(constants: &Constants) -> Report {
    let (simulated, modelled) = (simulate(CORES, constants), simulate(MODEL, constants));
    let claim = |(figure, (simulated, modelled)): (&Figure, (f64, f64))| Claim {
        name: figure.name,
        source: figure.source,
        unit: figure.unit,
        paper: figure.paper,
        simulated,
        modelled,
        within_pct: figure.within_pct,
        rests_on: Vec::new(),
        note: figure.note,
    };
    let claims: Vec<Claim> = FIGURES.iter().zip(simulated.into_iter().zip(modelled)).map(claim).collect();
    let missed = claims.iter().filter(|claim| !claim.is_met()).map(miss).collect();
    Report { constants: *constants, claims, outlook: outlook(constants), missed }
}

fn miss(claim: &Claim) -> String {
    format!(
        "{} ({}): {:.3} {}, the paper {:.3}: {:+.1} %, {} % allowed",
        claim.name,
        claim.source,
        claim.simulated,
        claim.unit,
        claim.paper,
        claim.error_pct(),
        claim.within_pct.unwrap_or_default()
    )
}

/// Which constants move a result, given the result with each of them made worse.
fn rests_on(modelled: f64, worsened: impl Iterator<Item = f64>) -> Vec<Reliance> {
    let mut reliances: Vec<Reliance> = Constants::ALL
        .iter()
        .zip(worsened)
        .map(|(constant, value)| Reliance {
            constant: constant.name,
            is_published: constant.is_published,
            elasticity: (value / modelled).ln() / constant.worse.ln(),
        })
        .filter(|reliance| reliance.elasticity.abs() >= ELASTICITY_MIN)
        .collect();
    reliances
        .sort_by(|a, b| b.elasticity.abs().total_cmp(&a.elasticity.abs()).then(a.constant.cmp(b.constant)));
    reliances
}

/// What the paper only hopes for, or leaves to its readers.
fn outlook(constants: &Constants) -> Vec<(&'static str, f64)> {
    let knee = core_knee;
    let peers = |is_remote| peers(CORES, constants, is_remote);
    let read = |constants: &Constants| core_rates(constants, behind_one(1), &[Traffic::Read], SEED).down_gbps;
    vec![
        ("p2p under one bridge", peers(false)),
        ("p2p across two pairs of proxies", peers(true)),
        ("h2d with read requests of 512 bytes", read(&Constants { read_request_bytes: 512.0, ..*constants })),
        ("h2d with 768 tags", read(&Constants { tags: 768.0, ..*constants })),
        ("8 training GPUs behind two pairs of proxies, h2d", knee(constants, 8, 2, SEED).down_gbps),
        ("8 training GPUs behind two pairs of proxies, d2h", knee(constants, 8, 2, SEED).up_gbps),
        ("16 training GPUs behind one pair, h2d", knee(constants, 16, 1, SEED).down_gbps),
        ("16 training GPUs behind four pairs, h2d", knee(constants, 16, 4, SEED).down_gbps),
    ]
}
