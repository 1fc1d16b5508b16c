//! Replays every seed of the fuzzer's corpus through its target, then a fixed number of mutants of them.
//!
//! `DXPU_FUZZ=TARGET` runs one target, `DXPU_FUZZ=TARGET:NUMBER` one mutant, `DXPU_FUZZ=TARGET:FILE` one seed; the input
//! is left as a file. `DXPU_FUZZ_MUTANTS` is the number of mutants, `DXPU_FUZZ_TRACE=1` names each input before it runs
//! (for what ends the process: a stack that overflows, a signal).

mod counting;
mod mutate;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use testkit::{corpus, fuzz, samples};

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

const MUTANTS: u64 = 2000;
/// The most that stays allocated after a target's last input: caches, not leaks.
const LEFT_BYTES_MAX: usize = 8 << 20;
/// Seeds longer than this are replayed, but make no mutants: they are slow and say little that short ones do not.
const MUTATED_BYTES_MAX: usize = 16 << 10;
/// What a decoder may allocate however short its input is, and for each byte of it.
const MEMORY_BYTES: usize = 64 << 20;
const MEMORY_BYTES_EACH: usize = 300;
/// Zstandard frames say how far back they refer; the decoder keeps that much, up to a bound of its own of 100 MB.
const WINDOW_BYTES: usize = 100 << 20;
const WITH_WINDOWS: [&str; 3] = ["fatbin", "fatbin_entry", "soft_link"];
/// Far more than the slowest input takes on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(20);

/// What runs now and since when, for the thread that ends a test that hangs.
type Running = Arc<Mutex<Option<(String, Instant)>>>;

/// Ends the process, with the input's name, when one input takes for ever.
fn watch(running: Running) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_millis(500));
            if let Some((name, since)) = &*running.lock().unwrap()
                && since.elapsed() > TIME_MAX
            {
                eprintln!("{name} hangs: DXPU_FUZZ={name}");
                std::process::abort();
            }
        }
    });
}

#[derive(Default)]
struct Report {
    inputs: u64,
    /// The most memory, and which input took it.
    peak: (usize, String),
    slowest: (Duration, String),
    failures: Vec<String>,
}

struct Replay {
    running: Running,
    is_traced: bool,
}

impl Replay {
    fn run(&self, report: &mut Report, name: &str, target: fuzz::Target, input: &[u8]) {
        if self.is_traced {
            eprintln!("{name} ({} bytes)", input.len());
        }
        let start = Instant::now();
        *self.running.lock().unwrap() = Some((name.to_owned(), start));
        let mut outcome = Ok(());
        let peak = counting::peak_of(|| outcome = catch_unwind(AssertUnwindSafe(|| target(input))));
        *self.running.lock().unwrap() = None;
        report.inputs += 1;
        let which = || name.split_once(':').map_or("", |(_, input)| input).to_owned();
        if start.elapsed() > report.slowest.0 {
            report.slowest = (start.elapsed(), which());
        }
        if peak > report.peak.0 {
            report.peak = (peak, which());
        }
        let has_windows = WITH_WINDOWS.iter().any(|target| name.starts_with(&format!("{target}:")));
        let window = if has_windows { WINDOW_BYTES } else { 0 };
        let allowed = MEMORY_BYTES + MEMORY_BYTES_EACH * input.len() + window;
        if outcome.is_err() {
            report.failures.push(format!("DXPU_FUZZ={name} panicked"));
        } else if peak > allowed {
            report.failures.push(format!("DXPU_FUZZ={name} took {peak} bytes, more than {allowed}"));
        }
    }

    fn target(&self, name: &str, target: fuzz::Target, only: Option<&str>) -> Report {
        let seeds = corpus::seeds(name).unwrap_or_else(|error| panic!("corpus of {name}: {error}"));
        assert!(!seeds.is_empty(), "{name} has no seeds");
        let mut report = Report::default();
        for (seed, bytes) in &seeds {
            if only.is_none_or(|only| only == seed) {
                self.run(&mut report, &format!("{name}:{seed}"), target, bytes);
            }
        }
        for seed in samples::bulk().iter().filter(|seed| seed.target == name) {
            if only.is_none_or(|only| only == seed.name) {
                self.run(&mut report, &format!("{name}:{}", seed.name), target, &seed.bytes);
            }
        }
        let short: Vec<(String, Vec<u8>)> =
            seeds.into_iter().filter(|(_, bytes)| bytes.len() <= MUTATED_BYTES_MAX).collect();
        let asked = std::env::var("DXPU_FUZZ_MUTANTS").ok().and_then(|number| number.parse().ok());
        let numbers = match only {
            None => 0..asked.unwrap_or(MUTANTS),
            Some(only) => only.parse().map_or(0..0, |number: u64| number..number + 1),
        };
        for number in numbers {
            let bytes = mutate::mutant(&mut mutate::Random::new(name, number), &short);
            if only.is_some() {
                let path = std::env::temp_dir().join(format!("dxpu-fuzz-{name}-{number}"));
                std::fs::write(&path, &bytes).unwrap();
                println!("the input is in {}", path.display());
            }
            self.run(&mut report, &format!("{name}:{number}"), target, &bytes);
        }
        report
    }
}

#[test]
fn no_input_panics_hangs_or_takes_memory() {
    let running = Running::default();
    watch(running.clone());
    let replay = Replay { running, is_traced: std::env::var_os("DXPU_FUZZ_TRACE").is_some() };
    let asked = std::env::var("DXPU_FUZZ").ok();
    let (asked, only) = match asked.as_deref().map(|asked| asked.split_once(':').unwrap_or((asked, ""))) {
        None => (None, None),
        Some((target, "")) => (Some(target), None),
        Some((target, only)) => (Some(target), Some(only)),
    };
    assert!(asked.is_none_or(|asked| fuzz::find(asked).is_some()), "no target is called {asked:?}");
    let mut failures = Vec::new();
    for (name, target) in fuzz::TARGETS {
        if asked.is_some_and(|asked| asked != *name) {
            continue;
        }
        let (start, allocated) = (Instant::now(), counting::now());
        let report = replay.target(name, *target, only);
        println!(
            "{name:15} {:6} inputs, {:5} ms; slowest {:4} ms ({}), most memory {:6} KiB ({})",
            report.inputs,
            start.elapsed().as_millis(),
            report.slowest.0.as_millis(),
            report.slowest.1,
            report.peak.0 >> 10,
            report.peak.1,
        );
        assert!(report.inputs > 0, "nothing is called {only:?}");
        failures.extend(report.failures);
        let left = counting::now().saturating_sub(allocated);
        if left > LEFT_BYTES_MAX {
            failures.push(format!("DXPU_FUZZ={name} left {left} bytes allocated"));
        }
    }
    assert!(failures.is_empty(), "run one again with its name in the environment:\n{}", failures.join("\n"));
}
