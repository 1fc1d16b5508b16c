//! What a run leaves behind, as columns over the load that has arrived.

use super::LOAD_PCT_MAX;
use super::published_arithmetic::{mean, printed_2, rounded_2};

/// The state after one arrival.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// Thousandths of GPUs that were asked for so far.
    pub arrived_milli: u64,
    /// Thousandths of GPUs that were granted so far.
    pub used_milli: u64,
    /// How much of the idle GPUs is fragment, in percent.
    pub fragment_pct: f64,
}

/// One replay of one list with one policy and one seed.
#[derive(Clone, Debug)]
pub struct Run {
    /// After every arrival.
    pub records: Vec<Record>,
    /// Pods that were turned away.
    pub refused: usize,
    /// Of those, pods that found free GPUs, but not the processors or memory that had to come with them.
    pub refused_for_cpu_or_memory: usize,
    /// Thousandths of GPUs that had arrived when the first pod with GPUs was turned away.
    pub first_refusal_milli: Option<u64>,
}

/// The columns of the published tables: one per percent of arrived load, from 0 to 130.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Percent of all GPUs that are allocated.
    pub allocation_pct: Vec<f64>,
    /// Percent of idle GPUs that are fragment.
    pub fragment_pct: Vec<f64>,
}

impl Curve {
    /// Sorts the records of a run by arrived load and averages them. `gpu_milli` is the whole cluster.
    pub fn new(records: &[Record], gpu_milli: u64) -> Self {
        let pct = |milli: u64| 100.0 * milli as f64 / gpu_milli as f64;
        let columns = LOAD_PCT_MAX as usize + 1;
        let (mut allocation, mut fragment) = (vec![Vec::new(); columns], vec![Vec::new(); columns]);
        for record in records {
            let column = pct(record.arrived_milli).round_ties_even() as usize;
            if let (Some(allocation), Some(fragment)) = (allocation.get_mut(column), fragment.get_mut(column))
            {
                allocation.push(rounded_2(pct(record.used_milli)));
                fragment.push(printed_2(record.fragment_pct));
            }
        }
        Self {
            allocation_pct: averaged(&allocation).into_iter().map(rounded_2).collect(),
            fragment_pct: averaged(&fragment),
        }
    }

    /// Allocation at the full load: the last column with records, which is 130 % unless pods are large for the cluster.
    pub fn allocation_at_full_load(&self) -> f64 {
        last_number(&self.allocation_pct)
    }

    /// Fragment ratio at the full load.
    pub fn fragment_at_full_load(&self) -> f64 {
        last_number(&self.fragment_pct)
    }
}

fn last_number(columns: &[f64]) -> f64 {
    columns.iter().rev().copied().find(|value| !value.is_nan()).unwrap_or(f64::NAN)
}

/// The mean of each column. A column without records takes those of its neighbours, and is no number without any.
fn averaged(columns: &[Vec<f64>]) -> Vec<f64> {
    let mean_of = |number: usize| {
        let own = &columns[number];
        if !own.is_empty() {
            return mean(own);
        }
        let around = columns[number.saturating_sub(1)..columns.len().min(number + 2)].concat();
        if around.is_empty() { f64::NAN } else { mean(&around) }
    };
    (0..columns.len()).map(mean_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(arrived_milli: u64, used_milli: u64, fragment_pct: f64) -> Record {
        Record { arrived_milli, used_milli, fragment_pct }
    }

    #[test]
    fn records_fall_into_columns_by_arrived_load() {
        // Of 1000 thousandths: 0.4 % is column 0, 0.6 % and 1.4 % are column 1, and column 2 has none of its own.
        let curve = Curve::new(
            &[record(4, 4, 10.0), record(6, 6, 20.0), record(14, 8, 40.004), record(31, 8, 50.0)],
            1000,
        );
        assert_eq!(curve.allocation_pct[..4], [0.4, 0.7, 0.73, 0.8]);
        assert_eq!(curve.fragment_pct[..4], [10.0, 30.0, 110.0 / 3.0, 50.0]);
        assert!(curve.allocation_pct[90].is_nan() && curve.allocation_pct.len() == 131);
        assert_eq!(curve.allocation_at_full_load(), 0.8);
        assert!(Curve::new(&[], 1000).fragment_at_full_load().is_nan());
    }
}
