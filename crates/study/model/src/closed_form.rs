//! One formula for every measured row.
//!
//! With `x = 1/performance - 1`, the time a workload loses per unit of time it had, and `D` the round trip that the network adds:
//!
//! ```text
//!                           launches                     parameter copies (CPU keeps the parameters)      input copies
//!        E * (1 + k*(gpus - 1)) * hidden       m * ( f*slower + r*D*crossings/d )                        i*m_in*slower_H
//!  x  =  -------------------------------   +                                                         +
//!              max(T, period)
//!
//!  E = c * (D + fixed)             what one operation on the GPU loses
//!  hidden = min(1, t0/T)           where no chain of short kernels follows (forward passes, fused graphs); else 1
//!  slower = h*slower_H + (1-h)*slower_D     Eq. 1 for reads, Table 7 for writes; h the host-to-device part
//!  crossings = h + (1-h)/2                  a posted write crosses once, a read there and back (section 3.4.1)
//! ```
//!
//! Why it works where a fit on the kernel's duration does not:
//!
//! - **The period between launches counts, not the kernel's duration.** A GPU that waits for its next launch loses a round
//!   trip as surely as one that computes, but the loss is shared out over the whole period. SSD320's kernels last 8 us, its
//!   launches are about 50 us apart; without `max(T, period)` the four rows ask for a loss of 55 %, and they lost 16.
//! - **An operation loses a fixed time besides the round trips.** The losses of both builds and of the hook grow with `D` on
//!   straight lines that do not pass through zero (Table 4, Fig. 4).
//! - **Short kernels expose the distance, long ones hide it.** In training, about 59 % of the kernels are short at every batch
//!   size (Fig. 5a), so the loss per kernel stays. In forward passes and fused graphs it falls as kernels grow.
//! - **One proxy serves all GPUs of a host**: each further GPU's commands stand in the way of the others'.

use crate::equation::PciePath;

/// The constants of the formula. Nine, shared by all rows; see [`crate::fitting`] for how they are found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// `c`: round trips that one operation exposes.
    pub exposed_round_trips: f64,
    /// `fixed`: what one operation loses whatever the distance, in units of one exposed round trip.
    pub fixed_us: f64,
    /// Operations that TensorFlow 1.15 issues for each kernel duration's worth of work. The hook model and the two builds of
    /// Table 4 ran on that version; every later row on another.
    pub operations_per_kernel: f64,
    /// The least time between two launches of a program that cannot launch faster.
    pub launch_period_us: f64,
    /// `t0`: the duration beyond which a kernel begins to hide the distance.
    pub hiding_us: f64,
    /// `k`: what each further GPU behind the proxy adds, as a part of the first one's.
    pub contention_per_gpu: f64,
    /// `f`: the part of parameter copies that nothing hides.
    pub parameter_copies_exposed: f64,
    /// `r`: round trips that one parameter copy exposes.
    pub copy_round_trips: f64,
    /// `i`: the part of input copies that prefetching does not hide.
    pub input_copies_exposed: f64,
}

/// How many [`Parameters`] there are.
pub const PARAMETER_COUNT: usize = 9;

impl Parameters {
    /// Names in the order of [`Parameters::to_array`].
    pub const NAMES: [&'static str; PARAMETER_COUNT] = [
        "exposed_round_trips",
        "fixed_us",
        "operations_per_kernel",
        "launch_period_us",
        "hiding_us",
        "contention_per_gpu",
        "parameter_copies_exposed",
        "copy_round_trips",
        "input_copies_exposed",
    ];

    /// What each of them means, in a sentence, in the same order.
    pub const MEANINGS: [&'static str; PARAMETER_COUNT] = [
        "added round trips that one operation on the GPU exposes",
        "what one operation loses whatever the distance, in us of round trip",
        "operations per kernel duration in the TensorFlow 1.15 runs of Table 4 and Fig. 4",
        "least time between launches of a program that cannot launch faster, in us",
        "kernel duration beyond which forward passes and fused graphs hide the distance, in us",
        "what each further GPU behind one proxy adds to the loss per operation",
        "part of parameter copies that nothing overlaps",
        "added round trips that one parameter copy exposes",
        "part of input copies that prefetching leaves exposed",
    ];

    /// Where a fit begins: each constant at the value that its meaning suggests.
    pub const GUESS: Self = Self {
        exposed_round_trips: 1.0,
        fixed_us: 1.0,
        operations_per_kernel: 1.0,
        launch_period_us: 30.0,
        hiding_us: 30.0,
        contention_per_gpu: 0.1,
        parameter_copies_exposed: 0.5,
        copy_round_trips: 1.0,
        input_copies_exposed: 0.1,
    };

    /// The constants as a vector, for the fitter.
    pub fn to_array(self) -> [f64; PARAMETER_COUNT] {
        [
            self.exposed_round_trips,
            self.fixed_us,
            self.operations_per_kernel,
            self.launch_period_us,
            self.hiding_us,
            self.contention_per_gpu,
            self.parameter_copies_exposed,
            self.copy_round_trips,
            self.input_copies_exposed,
        ]
    }

    /// The reverse of [`Parameters::to_array`].
    pub fn from_array(values: [f64; PARAMETER_COUNT]) -> Self {
        let [
            exposed_round_trips,
            fixed_us,
            operations_per_kernel,
            launch_period_us,
            hiding_us,
            contention_per_gpu,
            parameter_copies_exposed,
            copy_round_trips,
            input_copies_exposed,
        ] = values;
        Self {
            exposed_round_trips,
            fixed_us,
            operations_per_kernel,
            launch_period_us,
            hiding_us,
            contention_per_gpu,
            parameter_copies_exposed,
            copy_round_trips,
            input_copies_exposed,
        }
    }

    /// What one operation on the GPU loses when the network adds `added_rtt_us` to a round trip.
    pub fn loss_per_operation_us(&self, added_rtt_us: f64) -> f64 {
        self.exposed_round_trips * self.crossing_us(added_rtt_us)
    }

    /// One added round trip and its fixed cost. A GPU in the server has neither: the fixed cost is the network's, too.
    fn crossing_us(&self, added_rtt_us: f64) -> f64 {
        if added_rtt_us > 0.0 { added_rtt_us + self.fixed_us } else { 0.0 }
    }
}

/// How the row was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Section 3.4.2: latency injected into a local GPU, one filler kernel per operation, TensorFlow 1.15.
    Hook,
    /// Table 4: the two builds, TensorFlow 1.15.
    FirstBuilds,
    /// Section 4: the 6.8 us build, later software.
    Evaluation,
}

/// Whether short kernels follow each other whatever the batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Graph {
    /// Gradients and updates, or a frame's draws: a constant part of the kernels is short.
    WithShortKernels,
    /// A forward pass, or a graph whose short kernels were fused away.
    LongKernelsOnly,
}

/// Parameters that live in host memory and cross the bus every step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ParameterCopies {
    /// Their share of the GPU's time in the server, beyond what the program copies anyway.
    pub share: f64,
    /// The part of that which goes from host to device.
    pub host_to_device: f64,
    /// Mean duration of one copy in the server.
    pub copy_us: f64,
}

/// Round trips that a posted write waits for: half of one, since nothing comes back (section 3.4.1).
const WRITE_CROSSINGS: f64 = 0.5;

/// What the formula needs to know of a workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inputs {
    /// How it was measured.
    pub setting: Setting,
    /// What its kernels are like.
    pub graph: Graph,
    /// Round trip of a PCIe read.
    pub rtt_us: f64,
    /// Mean duration of a kernel on the GPU.
    pub kernel_us: f64,
    /// GPUs that one host drives through one proxy.
    pub gpus: f64,
    /// Share of input copies (host to device, prefetched) in the GPU's time.
    pub input_share: f64,
    /// Parameters kept in host memory.
    pub parameter_copies: Option<ParameterCopies>,
}

/// The loss, term by term, as parts of the time the workload took in the server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// Launches and memsets that waited for the distance.
    pub launches: f64,
    /// Parameter copies at the rate that tags allow.
    pub parameter_rate: f64,
    /// Parameter copies that each waited for the distance.
    pub parameter_latency: f64,
    /// Input copies at the rate that tags allow.
    pub inputs: f64,
}

impl Loss {
    /// All terms together.
    pub fn total(&self) -> f64 {
        self.launches + self.parameter_rate + self.parameter_latency + self.inputs
    }

    /// Performance kept, in percent.
    pub fn kept_pct(&self) -> f64 {
        100.0 / (1.0 + self.total())
    }
}

/// What a workload loses.
pub fn loss(parameters: &Parameters, path: &PciePath, inputs: &Inputs) -> Loss {
    let added = path.added_rtt_us(inputs.rtt_us);
    let launches = launch_loss(parameters, added, inputs);
    let slower = path.read_slowdown(inputs.rtt_us);
    let slower_writes = if added > 0.0 { path.write_slowdown() } else { 0.0 };
    let (mut parameter_rate, mut parameter_latency) = (0.0, 0.0);
    if let Some(copies) = inputs.parameter_copies {
        let down = copies.host_to_device;
        let up = 1.0 - down;
        parameter_rate =
            copies.share * parameters.parameter_copies_exposed * (down * slower + up * slower_writes);
        let crossings = down + WRITE_CROSSINGS * up;
        parameter_latency = copies.share * parameters.copy_round_trips * added * crossings / copies.copy_us;
    }
    let inputs = parameters.input_copies_exposed * inputs.input_share * slower;
    Loss { launches, parameter_rate, parameter_latency, inputs }
}

fn launch_loss(parameters: &Parameters, added_rtt_us: f64, inputs: &Inputs) -> f64 {
    let per_operation = parameters.loss_per_operation_us(added_rtt_us);
    match inputs.setting {
        // The hook's filler kernel lasts one added round trip and costs a launch of its own.
        Setting::Hook => {
            parameters.operations_per_kernel * parameters.crossing_us(added_rtt_us) / inputs.kernel_us
        }
        Setting::FirstBuilds => parameters.operations_per_kernel * per_operation / inputs.kernel_us,
        Setting::Evaluation => {
            let period = inputs.kernel_us.max(parameters.launch_period_us);
            let contention = 1.0 + parameters.contention_per_gpu * (inputs.gpus - 1.0);
            per_operation * contention * hidden(parameters, inputs) / period
        }
    }
}

/// The part of the loss that long kernels do not hide.
fn hidden(parameters: &Parameters, inputs: &Inputs) -> f64 {
    match inputs.graph {
        Graph::WithShortKernels => 1.0,
        Graph::LongKernelsOnly => (parameters.hiding_us / inputs.kernel_us).min(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::equation::V100;
    use proptest::prelude::*;

    const TRAINING: Inputs = Inputs {
        setting: Setting::Evaluation,
        graph: Graph::WithShortKernels,
        rtt_us: 6.8,
        kernel_us: 100.0,
        gpus: 1.0,
        input_share: 0.0,
        parameter_copies: None,
    };

    #[test]
    fn the_terms_are_those_of_the_formula() {
        let parameters = Parameters { exposed_round_trips: 2.0, fixed_us: 0.4, ..Parameters::GUESS };
        // 2 * (5.6 + 0.4) / 100.
        let launches = loss(&parameters, &V100, &TRAINING).launches;
        assert!((launches - 0.12).abs() < 1e-12, "{launches}");
        // Kernels of 8 us, launches 30 us apart.
        let short = Inputs { kernel_us: 8.0, ..TRAINING };
        assert!((loss(&parameters, &V100, &short).launches - 12.0 / 30.0).abs() < 1e-12);
        // Three GPUs: 1 + 0.1 * 2.
        let three = Inputs { gpus: 3.0, ..TRAINING };
        assert!((loss(&parameters, &V100, &three).launches - 0.12 * 1.2).abs() < 1e-12);
        // Kernels of 100 us hide all but 30/100.
        let forward = Inputs { graph: Graph::LongKernelsOnly, ..TRAINING };
        assert!((loss(&parameters, &V100, &forward).launches - 0.12 * 0.3).abs() < 1e-12);
    }

    #[test]
    fn copies_lose_rate_and_round_trips_by_direction() {
        let copies = ParameterCopies { share: 0.1, host_to_device: 0.5, copy_us: 56.0 };
        let inputs = Inputs { parameter_copies: Some(copies), input_share: 0.02, ..TRAINING };
        let found = loss(&Parameters::GUESS, &V100, &inputs);
        let (slower_down, slower_up) = (11.2 / (140.0 * 128.0 / 6.8e3) - 1.0, 12.5 / 11.6 - 1.0);
        let rate = 0.1 * 0.5 * (0.5 * slower_down + 0.5 * slower_up);
        assert!((found.parameter_rate - rate).abs() < 1e-12);
        assert!((found.parameter_latency - 0.1 * 5.6 * 0.75 / 56.0).abs() < 1e-12);
        assert!((found.inputs - 0.1 * 0.02 * slower_down).abs() < 1e-12);
        assert!(
            (found.total() - found.launches - rate - found.parameter_latency - found.inputs).abs() < 1e-12
        );
    }

    proptest! {
        #[test]
        fn performance_falls_with_the_distance_and_begins_at_all_of_it(
            near_us in 1.2f64..60.0,
            more_us in 0.01f64..60.0,
            kernel_us in 1.0f64..1000.0,
            gpus in 1u32..16,
            setting in prop_oneof![Just(Setting::Hook), Just(Setting::FirstBuilds), Just(Setting::Evaluation)],
            graph in prop_oneof![Just(Graph::WithShortKernels), Just(Graph::LongKernelsOnly)],
            share in 0.0f64..0.5,
            host_to_device in 0.0f64..1.0,
        ) {
            let copies = ParameterCopies { share, host_to_device, copy_us: 20.0 };
            let at = |rtt_us| Inputs {
                setting, graph, rtt_us, kernel_us, gpus: f64::from(gpus), input_share: share,
                parameter_copies: Some(copies),
            };
            let kept = |rtt_us| loss(&Parameters::GUESS, &V100, &at(rtt_us)).kept_pct();
            prop_assert!(kept(near_us + more_us) < kept(near_us));
            prop_assert!((kept(1.2) - 100.0).abs() < 1e-9);
        }
    }
}
