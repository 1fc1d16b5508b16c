//! `dxpu doctor`: checks of an installation, each with what to do.
//!
//! It only looks. Every check that can be made is made, so that one run shows all that is wrong.

use crate::support::exit::{Exit, Failure, Outcome};
use crate::support::library;
use crate::support::paint::{Paper, Tone};
use crate::support::pool_access::PoolAccess;
use crate::support::quick_build;
use pool_api::{BoxRecord, BoxState, Capacity, ErrorCode, Gpu, GpuState, WhoAmI};
use pool_client::{Client, ClientError};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Check this machine and its pool, and say what to do for each finding
#[derive(clap::Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    access: PoolAccess,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    /// It works, and an operator should look.
    Note,
    /// It does not work.
    Wrong,
}

#[derive(Debug, PartialEq, Eq)]
struct Finding {
    verdict: Verdict,
    what: String,
    /// What to do; empty if nothing is.
    hint: String,
}

fn good(what: impl Into<String>) -> Finding {
    Finding { verdict: Verdict::Good, what: what.into(), hint: String::new() }
}

fn note(what: impl Into<String>, hint: impl Into<String>) -> Finding {
    Finding { verdict: Verdict::Note, what: what.into(), hint: hint.into() }
}

fn wrong(what: impl Into<String>, hint: impl Into<String>) -> Finding {
    Finding { verdict: Verdict::Wrong, what: what.into(), hint: hint.into() }
}

/// Certificates bear clocks that differ by hours; people who read logs do not.
const CLOCKS_APART_MAX: Duration = Duration::from_secs(10);

impl Doctor {
    pub(crate) fn run(self) -> Outcome {
        let mut findings = machine();
        findings.extend(self.pool());
        let paper = Paper::stdout();
        for finding in &findings {
            let (word, tone) = match finding.verdict {
                Verdict::Good => ("good ", Tone::Good),
                Verdict::Note => ("note ", Tone::Passing),
                Verdict::Wrong => ("WRONG", Tone::Wrong),
            };
            outln!("{}  {}", tone.paint(word, paper.is_colourful), finding.what);
            if !finding.hint.is_empty() {
                outln!("       what to do: {}", finding.hint);
            }
        }
        match findings.iter().filter(|finding| finding.verdict == Verdict::Wrong).count() {
            0 => Ok(Exit::Success),
            count => Err(Failure::new(
                Exit::Failure,
                format!("{} of {} checks found something wrong", count, findings.len()),
                "",
            )
            .into()),
        }
    }

    fn pool(&self) -> Vec<Finding> {
        let credential = match self.access.find() {
            Ok(credential) => credential,
            Err(error) => return vec![wrong(format!("{error:#}"), hint_of(&error))],
        };
        let mut findings = vec![good(format!("a credential for {}", credential.identity))];
        let client = match self.access.client() {
            Ok(client) => client,
            Err(error) => {
                findings.push(wrong(format!("{error:#}"), hint_of(&error)));
                return findings;
            }
        };
        match client.get::<WhoAmI>("/v1/whoami", Duration::ZERO) {
            Err(error) => findings.push(wrong(error.to_string(), error.hint())),
            Ok(me) => {
                findings.push(good(format!("a manager answers ({})", credential.managers.join(", "))));
                findings.push(clocks(me.now_ms, SystemTime::now()));
                findings.extend(boxes(&client));
                findings.push(capacity(client.get("/v1/capacity", Duration::ZERO)));
            }
        }
        findings
    }
}

fn hint_of(error: &anyhow::Error) -> String {
    error.downcast_ref::<Failure>().map_or_else(String::new, |failure| failure.hint.clone())
}

/// What this machine has.
fn machine() -> Vec<Finding> {
    let mut findings = Vec::new();
    if quick_build::IS_QUICK {
        findings.push(note("this dxpu is a quick build, which is slow", quick_build::WHAT_TO_DO));
    }
    findings.push(match library::extract() {
        Ok(_) => good("the client libraries can be unpacked"),
        Err(error) => wrong(
            format!("the client libraries cannot be unpacked: {error:#}"),
            "make room in the cache directory",
        ),
    });
    let has_driver = Path::new("/proc/driver/nvidia/version").exists();
    findings.push(match has_driver {
        true => good("this machine has NVIDIA's driver: `dxpu box` and `dxpu worker --driver nvidia` lend its GPUs"),
        false => note(
            "this machine has no NVIDIA driver",
            "nothing to borrow GPUs; to lend software GPUs: `dxpu box --soft N` or `dxpu worker --driver soft`",
        ),
    });
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    if limit < OPEN_FILES_MIN {
        findings.push(note(
            format!("this shell lets a process open {limit} files"),
            format!("a worker with many programs needs more: ulimit -n {OPEN_FILES_MIN}"),
        ));
    }
    findings
}

/// A program of a worker takes about ten descriptors.
const OPEN_FILES_MIN: u64 = 1024;

fn clocks(theirs_ms: u64, ours: SystemTime) -> Finding {
    let ours = ours.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let apart = Duration::from_millis(theirs_ms).abs_diff(ours);
    if apart <= CLOCKS_APART_MAX {
        return good("the clocks of this machine and of the manager agree");
    }
    note(
        format!("the manager's clock and this machine's are {} s apart", apart.as_secs()),
        "set both by NTP: logs of the two cannot be compared, and a box whose clock is 16 h ahead is refused",
    )
}

fn boxes(client: &Client) -> Vec<Finding> {
    let boxes = match super::ask::all::<BoxRecord>(client, "/v1/boxes") {
        Ok((boxes, _)) => boxes,
        // A tenant does not see boxes.
        Err(error) if error.code() == Some(ErrorCode::Forbidden) => return Vec::new(),
        Err(error) => return vec![wrong(error.to_string(), error.hint())],
    };
    let gpus = super::ask::all::<Gpu>(client, "/v1/gpus").map(|(gpus, _)| gpus).unwrap_or_default();
    let mut findings: Vec<Finding> = boxes.iter().filter_map(of_box).collect();
    findings.extend(gpus.iter().filter_map(of_gpu));
    if findings.is_empty() && !boxes.is_empty() {
        findings.push(good(format!("all boxes report ({}), and all their GPUs work", boxes.len())));
    }
    findings
}

fn of_box(record: &BoxRecord) -> Option<Finding> {
    let name = &record.name;
    match record.state {
        _ if record.revoked.is_some() => {
            Some(note(format!("box {name} is revoked"), format!("take it off the list: dxpu box rm {name}")))
        }
        BoxState::Dead => Some(wrong(
            format!("box {name} is dead: its agent does not report"),
            format!(
                "on that machine, start `dxpu box` and read its log; if it is gone for good: dxpu box rm {name}"
            ),
        )),
        BoxState::Draining => Some(note(
            format!("box {name} gets no new leases"),
            format!("when it may: dxpu box uncordon {name}"),
        )),
        BoxState::Suspect => {
            Some(note(format!("box {name} has been silent for a moment"), "look again in a few seconds"))
        }
        BoxState::Ready => None,
    }
}

fn of_gpu(gpu: &Gpu) -> Option<Finding> {
    match gpu.state {
        GpuState::Bad => {
            let why = gpu.health.reason.clone().unwrap_or_else(|| "it does not say why".to_owned());
            let hint = format!("mend or replace it, then: dxpu gpu repair {}", gpu.id);
            Some(wrong(format!("GPU {} is bad: {why}", gpu.id), hint))
        }
        GpuState::Free => gpu.unready.as_ref().map(|why| {
            note(format!("GPU {} is not ready: {why}", gpu.id), "if it stays so, read the log of its box")
        }),
        _ => None,
    }
}

fn capacity(asked: Result<Vec<Capacity>, ClientError>) -> Finding {
    let all = match asked {
        Ok(all) => all,
        Err(error) => return wrong(error.to_string(), error.hint()),
    };
    let (working, free): (u64, u64) =
        all.iter().fold((0, 0), |sum, of| (sum.0 + of.working, sum.1 + of.free));
    match (working, free) {
        (0, _) => {
            wrong("the pool has no GPU that works", "add a box: `dxpu box --help`, or look at `dxpu box ls`")
        }
        (_, 0) if all.iter().any(|of| of.parts_free_milli > 0) => {
            good(format!("none of {working} GPUs is free as a whole, and parts of them are"))
        }
        (_, 0) => note(format!("all {working} GPUs of the pool are in use"), "`dxpu lease ls` shows by whom"),
        _ => good(format!("{free} of {working} GPUs are free")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_comes_with_what_to_do() {
        let record = |state: &str| -> BoxRecord {
            serde_json::from_value(serde_json::json!({
                "name": "rack1-a", "kind": "pcie", "state": state, "last_seen_ms": 0, "gpus": []
            }))
            .unwrap()
        };
        assert_eq!(of_box(&record("ready")), None);
        let dead = of_box(&record("dead")).unwrap();
        assert_eq!(dead.verdict, Verdict::Wrong);
        assert!(dead.hint.contains("dxpu box rm rack1-a"), "{dead:?}");
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        assert_eq!(clocks(99_000, now).verdict, Verdict::Good);
        assert!(clocks(40_000, now).what.contains("60 s apart"));
        assert_eq!(capacity(Ok(Vec::new())).verdict, Verdict::Wrong);
    }
}
