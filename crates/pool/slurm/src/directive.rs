//! What a job asks for: lines of its script that begin with `#DXPU`.
//!
//! ```text
//! #DXPU gpus=2 model=H200
//! #DXPU memory=80GiB
//! ```

use pool_api::{BoxKind, LeaseRequest, Model, PRIORITY_DEFAULT, Topology};
use thiserror::Error;

/// How a line begins that is meant for dxpu. `burst_buffer.conf` tells Slurm the same word (`Directive=DXPU`).
pub const PREFIX: &str = "#DXPU";

const WORDS: &str = "gpus, model, memory, kind, topology, priority";

/// Why a directive is refused. Slurm shows the text to the user who submits.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DirectiveError {
    /// There is no line for dxpu.
    #[error("no line begins with {PREFIX}; write one such as `{PREFIX} gpus=1`")]
    Nothing,
    /// A line with nothing behind its beginning.
    #[error("a line {PREFIX} asks for nothing; write `{PREFIX} gpus=1`")]
    Empty,
    /// A word without a value.
    #[error("`{0}` has no value; write NAME=VALUE, such as gpus=1")]
    NoValue(String),
    /// A name that means nothing here.
    #[error("there is no `{0}`; there are {WORDS}")]
    Unknown(String),
    /// The same name twice.
    #[error("`{0}` is given twice; write it once")]
    Twice(&'static str),
    /// A value that cannot be read.
    #[error("{name}={value}: {problem}")]
    Value {
        /// Which word.
        name: &'static str,
        /// What stands there.
        value: String,
        /// What is wrong with it, and what to write.
        problem: String,
    },
}

/// What a job asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    gpus: Option<u32>,
    model: Option<Model>,
    memory_bytes: Option<u64>,
    kind: Option<BoxKind>,
    topology: Option<Topology>,
    priority: Option<u32>,
}

impl Wanted {
    /// Reads the lines of a job script that are for dxpu. All lines together are one request.
    pub fn of_script(script: &str) -> Result<Self, DirectiveError> {
        let mut wanted = Self::default();
        let mut lines = 0;
        for line in script.lines() {
            let Some(rest) = line.strip_prefix(PREFIX) else { continue };
            // `#DXPUX` is a comment about something else.
            if !rest.is_empty() && !rest.starts_with(char::is_whitespace) {
                continue;
            }
            lines += 1;
            let mut words = rest.split_whitespace().peekable();
            if words.peek().is_none() {
                return Err(DirectiveError::Empty);
            }
            for word in words {
                wanted.take(word)?;
            }
        }
        if lines == 0 {
            return Err(DirectiveError::Nothing);
        }
        wanted.check()?;
        Ok(wanted)
    }

    fn take(&mut self, word: &str) -> Result<(), DirectiveError> {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let known = match name {
            "gpus" => "gpus",
            "model" => "model",
            "memory" => "memory",
            "kind" => "kind",
            "topology" => "topology",
            "priority" => "priority",
            _ => return Err(DirectiveError::Unknown(name.to_owned())),
        };
        if value.is_empty() {
            return Err(DirectiveError::NoValue(word.to_owned()));
        }
        let wrong = |problem: &str| DirectiveError::Value {
            name: known,
            value: value.to_owned(),
            problem: problem.to_owned(),
        };
        let number = || value.parse().map_err(|_| wrong("write a whole number"));
        match known {
            "gpus" => set(&mut self.gpus, known, number()?),
            "model" => {
                let model = Model::new(value).map_err(|invalid| wrong(&invalid.to_string()))?;
                set(&mut self.model, known, model)
            }
            "memory" => {
                let problem = "write a whole number and a unit, such as 80GiB";
                set(&mut self.memory_bytes, known, bytes(value).ok_or_else(|| wrong(problem))?)
            }
            "kind" => set(&mut self.kind, known, kind(value).ok_or_else(|| wrong("write nvlink or pcie"))?),
            "topology" => {
                let problem = "write any, same-box or nvlink";
                set(&mut self.topology, known, topology(value).ok_or_else(|| wrong(problem))?)
            }
            _ => set(&mut self.priority, known, number()?),
        }
    }

    /// Whether the pool's own rules allow it.
    fn check(&self) -> Result<(), DirectiveError> {
        let request = self.request(pool_api::LEASE_TTL_DEFAULT_MS, String::new());
        request.check().map_err(|invalid| {
            let (name, value) = match invalid.field {
                "priority" => ("priority", request.priority.to_string()),
                _ => ("gpus", request.gpus.to_string()),
            };
            DirectiveError::Value { name, value, problem: invalid.problem }
        })
    }

    /// The request for a lease. It lives for `ttl_ms` without a renewal.
    pub fn request(&self, ttl_ms: u64, note: String) -> LeaseRequest {
        LeaseRequest {
            gpus: self.gpus.unwrap_or(1),
            model: self.model.clone(),
            memory_bytes: self.memory_bytes,
            kind: self.kind,
            topology: self.topology.unwrap_or_default(),
            priority: self.priority.unwrap_or(PRIORITY_DEFAULT),
            ttl_ms,
            note,
            ..LeaseRequest::default()
        }
    }
}

fn set<T>(place: &mut Option<T>, name: &'static str, value: T) -> Result<(), DirectiveError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(DirectiveError::Twice(name)),
    }
}

fn kind(text: &str) -> Option<BoxKind> {
    match text {
        "nvlink" => Some(BoxKind::Nvlink),
        "pcie" => Some(BoxKind::Pcie),
        _ => None,
    }
}

fn topology(text: &str) -> Option<Topology> {
    match text {
        "any" => Some(Topology::Any),
        "same-box" | "same_box" => Some(Topology::SameBox),
        "nvlink" => Some(Topology::Nvlink),
        _ => None,
    }
}

/// `80GiB`, `80G`, `512MiB`: K, M, G and T are powers of 1024, as in Slurm's own `--mem`.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.strip_suffix("iB").unwrap_or(unit) {
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    let number: u64 = number.parse().ok()?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lines_for_dxpu_are_one_request() {
        let script = "#!/bin/bash\n#SBATCH -n 1\n#DXPU gpus=2 model=H200\n#DXPU\tmemory=80GiB topology=same-box\n#DXPUX y\nsrun x\n";
        let request = Wanted::of_script(script).unwrap().request(5_000, "n".to_owned());
        assert_eq!((request.gpus, request.memory_bytes), (2, Some(80 << 30)));
        assert_eq!(request.model, Some(Model::new("H200").unwrap()));
        assert_eq!((request.topology, request.kind), (Topology::SameBox, None));
        assert_eq!((request.ttl_ms, request.note.as_str()), (5_000, "n"));
        assert_eq!(request.priority, PRIORITY_DEFAULT);
    }

    #[test]
    fn every_mistake_is_told_in_words() {
        let told = |script: &str| Wanted::of_script(script).unwrap_err().to_string();
        for (script, words) in [
            ("#!/bin/sh\n", "write one such as `#DXPU gpus=1`"),
            ("#DXPU\n", "asks for nothing"),
            ("#DXPU gpus", "`gpus` has no value"),
            ("#DXPU gpu=1", "there is no `gpu`; there are gpus, model"),
            ("#DXPU gpus=one", "gpus=one: write a whole number"),
            ("#DXPU gpus=0", "gpus=0: must be 1 to 64"),
            ("#DXPU gpus=65", "gpus=65: must be 1 to 64"),
            ("#DXPU gpus=1 gpus=2", "`gpus` is given twice"),
            ("#DXPU gpus=1\n#DXPU gpus=2", "`gpus` is given twice"),
            ("#DXPU memory=80", "memory=80: write a whole number and a unit"),
            ("#DXPU memory=0G", "memory=0G"),
            ("#DXPU memory=99999999999T", "memory=99999999999T"),
            ("#DXPU kind=sxm", "kind=sxm: write nvlink or pcie"),
            ("#DXPU topology=rack", "write any, same-box or nvlink"),
            ("#DXPU priority=1001", "priority=1001: must be 0 to 1000"),
            ("#DXPU model=", "`model=` has no value"),
            ("#DXPU model=a\u{7}b", "model=a\u{7}b"),
        ] {
            assert!(told(script).contains(words), "{script:?} was told: {}", told(script));
        }
    }

    #[test]
    fn a_job_that_names_no_number_gets_one_gpu() {
        assert_eq!(Wanted::of_script("#DXPU model=L40S").unwrap().request(1_000, String::new()).gpus, 1);
    }
}
