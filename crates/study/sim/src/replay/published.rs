//! The published results, and how ours compare with them.

use super::csv::{Table, TraceError};
use super::{Curve, LOAD_PCT_MAX};
use pool::Policy;
use std::collections::HashMap;
use std::path::Path;

const ALLOCATION_FILE: &str = "fgd_published_allocation.csv";
const FRAGMENT_FILE: &str = "fgd_published_frag_ratio.csv";

/// The seeds of the published runs.
pub(super) const SEEDS: std::ops::RangeInclusive<u64> = 42..=51;

/// The published results for one list.
#[derive(Clone, Debug)]
pub struct Published {
    curves: HashMap<(Policy, u64), Curve>,
}

impl Published {
    /// Reads both tables, or nothing if there are none or they do not have this list. Where they must have it, a row
    /// that is missing is an error: the tables are truncated.
    pub(super) fn read(folder: &Path, list: &str, must_have: bool) -> Result<Option<Self>, TraceError> {
        let (allocation, fragment) = (folder.join(ALLOCATION_FILE), folder.join(FRAGMENT_FILE));
        let (there, also_there) = (allocation.exists(), fragment.exists());
        if !there && !also_there {
            return Ok(None);
        }
        if there != also_there {
            let (path, other) = if there { (fragment, ALLOCATION_FILE) } else { (allocation, FRAGMENT_FILE) };
            let reason =
                format!("there is no such file, though {other} is there: the published tables are two");
            return Err(TraceError::File { path, reason });
        }
        let (allocation, fragment) = (Table::read(&allocation)?, Table::read(&fragment)?);
        let mut allocation_rows = rows(&allocation, list)?;
        let mut fragment_rows = rows(&fragment, list)?;
        if allocation_rows.is_empty() && fragment_rows.is_empty() && !must_have {
            return Ok(None);
        }
        let mut curves = HashMap::new();
        for policy in Policy::ALL {
            for seed in SEEDS {
                let missing = |table: &Table| {
                    let name = published_name(policy);
                    table.wrong_file(format_args!(
                        "no row for list {list}, {name}, seed {seed}: truncated or altered"
                    ))
                };
                let key = (policy, seed);
                let allocation_pct = allocation_rows.remove(&key).ok_or_else(|| missing(&allocation))?;
                let fragment_pct = fragment_rows.remove(&key).ok_or_else(|| missing(&fragment))?;
                curves.insert(key, Curve { allocation_pct, fragment_pct });
            }
        }
        Ok(Some(Self { curves }))
    }

    /// The published curve of one run.
    pub fn curve(&self, policy: Policy, seed: u64) -> Option<&Curve> {
        self.curves.get(&(policy, seed))
    }
}

fn published_name(policy: Policy) -> &'static str {
    match policy {
        Policy::Random => "01-Random",
        Policy::DotProduct => "02-DotProd",
        Policy::Clustering => "03-GpuClustering",
        Policy::Packing => "04-GpuPacking",
        Policy::BestFit => "05-BestFit",
        Policy::Fgd => "06-FGD",
    }
}

type Rows = HashMap<(Policy, u64), Vec<f64>>;

fn rows(table: &Table, list: &str) -> Result<Rows, TraceError> {
    let (workload, policy, seed) =
        (table.column("workload")?, table.column("sc_policy")?, table.column("seed")?);
    let columns =
        (0..=LOAD_PCT_MAX).map(|load| table.column(&load.to_string())).collect::<Result<Vec<_>, _>>()?;
    let list = format!("openb_pod_list_{list}");
    let mut rows = HashMap::new();
    for row in table.rows() {
        let row = row?;
        // Every row is read, whatever its list: a broken table is not trusted for the rows that happen to be whole.
        let values = columns.iter().map(|&column| row.number(column)).collect::<Result<Vec<f64>, _>>()?;
        let name = row.text(policy);
        let policy = Policy::ALL.into_iter().find(|&policy| published_name(policy) == name);
        let policy = policy.ok_or_else(|| row.wrong(format_args!("{name:?} is no policy")))?;
        let seed: u64 = row.number(seed)?;
        if row.text(workload) == list && rows.insert((policy, seed), values).is_some() {
            return Err(row.wrong(format_args!("there was a row for {name}, seed {seed} before")));
        }
    }
    Ok(rows)
}

/// Whether a curve equals the published one in every column of both tables.
pub fn compare(ours: &Curve, published: &Curve) -> bool {
    // Not-a-number never equals anything, and must not: the published tables have a number everywhere.
    ours == published
}
