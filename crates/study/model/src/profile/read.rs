//! Reading a profile: everything is checked before anything is believed.

use super::wire::{END_OF_LINE, Header, Line, Meaning, VERSION};
use super::{Action, Profile, Record};
use thiserror::Error;

/// Why a file is no profile. The caller adds the name of the file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {reason}")]
pub struct ProfileError {
    /// Line of the file, counted from 1.
    pub line: usize,
    /// What is wrong.
    pub reason: String,
}

/// Reads a whole file, or says what is wrong with it. A part is never passed off as the whole.
pub fn read(bytes: &[u8]) -> Result<Profile, ProfileError> {
    let mut reader = Reader { profile: Profile::default(), line: 0, last_at_us: 0.0 };
    let mut rest = bytes;
    let mut hash = blake3::Hasher::new();
    let mut records = 0u64;
    loop {
        reader.line += 1;
        let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
            return Err(reader.cut_off(rest));
        };
        let (line, after) = (&rest[..end], &rest[end + 1..]);
        if reader.line == 1 {
            reader.header(line)?;
        } else {
            match reader.meaning(line)? {
                Meaning::Name { id, name } => reader.name(id, name)?,
                Meaning::Record(record) => {
                    reader.record(record)?;
                    records += 1;
                }
                Meaning::End { at, records: said, blake3 } => {
                    let sealed = blake3.len() + END_OF_LINE.len();
                    hash.update(&line[..line.len().saturating_sub(sealed)]);
                    return reader.finish(after, at, (records, said), hash.finalize(), &blake3);
                }
            }
        }
        hash.update(&rest[..=end]);
        rest = after;
    }
}

struct Reader {
    profile: Profile,
    line: usize,
    last_at_us: f64,
}

impl Reader {
    fn error(&self, reason: impl Into<String>) -> ProfileError {
        ProfileError { line: self.line, reason: reason.into() }
    }

    fn cut_off(&self, rest: &[u8]) -> ProfileError {
        match (self.line, rest.is_empty()) {
            (1, true) => self.error("the file is empty"),
            (1, false) => self.error("this is no profile: its first line does not end"),
            (_, true) => self.error("the file ends without its `end` line: it was cut off"),
            (_, false) => self.error("the file ends in the middle of a line: it was cut off"),
        }
    }

    fn header(&mut self, line: &[u8]) -> Result<(), ProfileError> {
        let value: serde_json::Value = serde_json::from_slice(line)
            .map_err(|error| self.error(format!("this is no profile: {error}")))?;
        let Some(version) = value.get("dxpu_profile").and_then(serde_json::Value::as_u64) else {
            return Err(self.error("this is no profile: its first line has no `dxpu_profile` version"));
        };
        if version != u64::from(VERSION) {
            return Err(
                self.error(format!("the profile has version {version}; this program reads {VERSION}"))
            );
        }
        let header: Header = serde_json::from_value(value).map_err(|error| self.error(error.to_string()))?;
        self.profile.device = header.device;
        self.profile.program = header.program;
        self.profile.measured = header.measured;
        Ok(())
    }

    fn meaning(&self, line: &[u8]) -> Result<Meaning, ProfileError> {
        let parsed: Line = serde_json::from_slice(line).map_err(|error| self.error(error.to_string()))?;
        Meaning::try_from(parsed).map_err(|reason| self.error(reason))
    }

    fn name(&mut self, id: u32, name: String) -> Result<(), ProfileError> {
        let next = self.profile.kernels.len();
        if id as usize != next {
            return Err(self.error(format!("kernel {id} is named, the next number is {next}")));
        }
        self.profile.kernels.push(name);
        Ok(())
    }

    fn record(&mut self, record: Record) -> Result<(), ProfileError> {
        self.time(record.at_us)?;
        let is_duration = |us: f64| us.is_finite() && us >= 0.0;
        let gpu_us = match record.action {
            Action::Launch { gpu_us, .. } | Action::Copy { gpu_us, .. } | Action::Memset { gpu_us, .. } => {
                gpu_us
            }
            _ => 0.0,
        };
        if !is_duration(record.call_us) || !is_duration(gpu_us) {
            return Err(self.error("a duration is negative"));
        }
        if let Action::Launch { kernel, kernels, .. } = record.action {
            if kernel as usize >= self.profile.kernels.len() {
                return Err(self.error(format!("kernel {kernel} is launched before it is named")));
            }
            if kernels == 0 {
                return Err(self.error("a launch of no kernels"));
            }
        }
        self.profile.records.push(record);
        Ok(())
    }

    fn time(&mut self, at_us: f64) -> Result<(), ProfileError> {
        if !at_us.is_finite() || at_us < self.last_at_us {
            let last = self.last_at_us;
            return Err(self.error(format!("the clock goes back from {last} to {at_us} us")));
        }
        self.last_at_us = at_us;
        Ok(())
    }

    fn finish(
        mut self,
        after: &[u8],
        at_us: f64,
        (records, said): (u64, u64),
        hash: blake3::Hash,
        said_hash: &str,
    ) -> Result<Profile, ProfileError> {
        self.time(at_us)?;
        if records != said {
            return Err(self.error(format!("the file says it has {said} records, {records} are there")));
        }
        if hash.to_hex().as_str() != said_hash {
            return Err(self.error("the checksum does not fit the lines above: the file was changed"));
        }
        if !after.is_empty() {
            self.line += 1;
            return Err(self.error("there is something after the `end` line"));
        }
        if self.profile.records.is_empty() {
            return Err(self.error("the profile holds no record"));
        }
        self.profile.wall_us = at_us;
        Ok(self.profile)
    }
}
