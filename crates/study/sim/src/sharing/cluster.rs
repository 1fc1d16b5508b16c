//! The programs of a cluster, drawn from recorded pods.

use super::published;
use crate::replay::ClassedPod;
use pool::{GpuNeed, SplitMix};

/// How many offline programs wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supply {
    /// As many for each online one as there are in the recorded cluster.
    Recorded,
    /// One for each GPU: a queue that never runs empty, as MuxFlow's.
    Plenty,
}

/// An online program, on one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OnlineProgram {
    /// Its share of the GPU's time over a day.
    pub load: f64,
    /// How long a request takes, in seconds.
    pub service_s: f64,
    /// When in the day it is busiest, in hours.
    pub peak_hour: f64,
    /// Its part of the GPU's memory.
    pub memory: f64,
}

/// An offline program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OfflineProgram {
    /// Its share of the GPU's time when it is alone.
    pub busy: f64,
    /// Its part of a GPU's memory.
    pub memory: f64,
    /// How long an online program waits for a group of its kernels, on average.
    pub residual_us: f64,
    /// SM activity while it runs.
    pub sm_activity: f64,
    /// Thousandths of a GPU that it asked for, as recorded.
    pub asked_milli: u16,
}

/// A cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// One on each GPU.
    pub online: Vec<OnlineProgram>,
    /// Those that wait, in order.
    pub offline: Vec<OfflineProgram>,
}

/// The cluster before any guest sat down, in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Before {
    /// GPU utilisation.
    pub utilization: f64,
    /// SM activity.
    pub sm_activity: f64,
    /// Memory in use.
    pub memory: f64,
}

/// SM activity of an online program while it runs: what is published of SM activity and utilisation before sharing says.
pub(super) const ONLINE_SM_ACTIVITY: f64 = published::SM_ACTIVITY.0 / published::UTILIZATION.0;

/// Requests of online programs take so long, in seconds: a small vision model to a large language model's token.
const SERVICE_S: [f64; 4] = [1.3e-3, 3e-3, 8e-3, 20e-3];
/// No program runs its GPU harder than this over a day.
const LOAD_MAX: f64 = 0.85;
/// Groups of kernels wait so long for the device, as measured for kernels of 20, 100 and 300 us, and 1 ms.
const RESIDUALS_US: [f64; 4] = [10.0, 50.0, 150.0, 500.0];

impl Cluster {
    /// Draws a cluster of so many GPUs from recorded pods. Utilisation and memory are those that are published, to the last digit.
    pub fn draw(pods: &[ClassedPod], gpus: usize, supply: Supply, seed: u64) -> Self {
        let mut dice = SplitMix::new(seed);
        let of = |qos: &str| pods.iter().filter(|pod| pod.qos == qos).map(|pod| pod.gpus).collect::<Vec<_>>();
        let (online_pods, offline_pods) = (of("LS"), of("BE"));
        assert!(!online_pods.is_empty() && !offline_pods.is_empty(), "a cluster has pods of both classes");
        let mut online = Vec::with_capacity(gpus);
        while online.len() < gpus {
            let pod = online_pods[below(&mut dice, online_pods.len())];
            // All GPUs of a pod serve the same requests.
            let service_s = SERVICE_S[below(&mut dice, SERVICE_S.len())];
            let (peak_hour, weight) = (12.0 + 8.0 * dice.unit(), f64::from(pod.slot_milli()) / 1000.0);
            let load = weight * dice.unit() * dice.unit();
            for _ in 0..pod.slots().min((gpus - online.len()) as u32) {
                let memory = 0.12 + 0.6 * dice.unit();
                online.push(OnlineProgram { load, service_s, peak_hour, memory });
            }
        }
        scale_to(&mut online, |program| &mut program.load, published::UTILIZATION.0 / 100.0, LOAD_MAX);
        scale_to(&mut online, |program| &mut program.memory, published::MEMORY.0 / 100.0, 0.9);
        let slots = |pods: &[GpuNeed]| pods.iter().map(|pod| u64::from(pod.slots())).sum::<u64>();
        let count = match supply {
            Supply::Plenty => gpus,
            Supply::Recorded => (gpus as u64 * slots(&offline_pods) / slots(&online_pods)) as usize,
        };
        let offline = (0..count).map(|_| {
            let pod = offline_pods[below(&mut dice, offline_pods.len())];
            OfflineProgram {
                busy: 0.7 + 0.3 * dice.unit(),
                memory: 0.02 + 0.1 * dice.unit(),
                residual_us: RESIDUALS_US[below(&mut dice, RESIDUALS_US.len())],
                sm_activity: 0.25 + 0.25 * dice.unit(),
                asked_milli: pod.slot_milli().min(999) as u16,
            }
        });
        Self { offline: offline.collect(), online }
    }

    /// The cluster before sharing, over a day.
    pub fn before(&self) -> Before {
        let count = self.online.len() as f64;
        let mean = |of: fn(&OnlineProgram) -> f64| self.online.iter().map(of).sum::<f64>() / count * 100.0;
        let utilization = mean(|program| program.load);
        Before {
            utilization,
            sm_activity: utilization * ONLINE_SM_ACTIVITY,
            memory: mean(|program| program.memory),
        }
    }
}

fn below(dice: &mut SplitMix, count: usize) -> usize {
    ((dice.unit() * count as f64) as usize).min(count - 1)
}

/// Scales a quantity so that its mean is as given, and none is beyond its bound.
fn scale_to<T>(items: &mut [T], of: impl Fn(&mut T) -> &mut f64, mean: f64, most: f64) {
    let count = items.len() as f64;
    // Bounded ones leave the rest to the others: a few rounds settle it.
    for _ in 0..64 {
        let sum: f64 = items.iter_mut().map(|item| *of(item)).sum();
        let factor = mean * count / sum;
        for item in items.iter_mut() {
            let value = of(item);
            *value = (*value * factor).min(most);
        }
    }
}
