//! Writing a profile, line by line, so that a recorder need not hold it.

use super::wire::{END_OF_LINE, Header, Line, VERSION};
use super::{Measured, Profile, Record};

/// Makes the lines of one profile file, and its checksum on the way.
#[derive(Debug)]
pub struct Encoder {
    hash: blake3::Hasher,
    records: u64,
    kernels: u32,
}

impl Encoder {
    /// Begins a file: the encoder and the file's first line.
    pub fn begin(device: &str, program: &str, measured: Option<&Measured>) -> (Self, String) {
        let mut encoder = Self { hash: blake3::Hasher::new(), records: 0, kernels: 0 };
        let header = Header {
            dxpu_profile: VERSION,
            device: device.to_owned(),
            program: program.to_owned(),
            measured: measured.cloned(),
        };
        let line = encoder.line(&header);
        (encoder, line)
    }

    /// Names a kernel: its number and the line.
    pub fn kernel(&mut self, name: &str) -> (u32, String) {
        let id = self.kernels;
        self.kernels += 1;
        (id, self.line(&Line::Kernel { id, name: name.to_owned() }))
    }

    /// One record's line.
    pub fn record(&mut self, record: &Record) -> String {
        self.records += 1;
        self.line(&Line::from(record))
    }

    /// The last line. Its checksum covers everything that stands before the checksum itself.
    pub fn end(mut self, wall_us: f64) -> String {
        let at = (wall_us * 1e3).round() / 1e3;
        let unsealed = Line::End { at, records: self.records, blake3: String::new() };
        let text = json(&unsealed);
        let (before, after) = text.split_at(text.len() - END_OF_LINE.len());
        self.hash.update(before.as_bytes());
        format!("{before}{}{after}\n", self.hash.finalize().to_hex())
    }

    fn line(&mut self, value: &impl serde::Serialize) -> String {
        let mut line = json(value);
        line.push('\n');
        self.hash.update(line.as_bytes());
        line
    }
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("numbers and strings always have a JSON form")
}

/// A whole profile as a file.
pub fn encode(profile: &Profile) -> String {
    let (mut encoder, mut text) =
        Encoder::begin(&profile.device, &profile.program, profile.measured.as_ref());
    for name in &profile.kernels {
        text.push_str(&encoder.kernel(name).1);
    }
    for record in &profile.records {
        text.push_str(&encoder.record(record));
    }
    text.push_str(&encoder.end(profile.wall_us));
    text
}
