//! What the service counts, as Prometheus reads it.

use crate::desk::Desk;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// What happened to programs since the service was started.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) moved: AtomicU64,
    pub(crate) not_moved: AtomicU64,
    pub(crate) resumed: AtomicU64,
    pub(crate) paused_ms: AtomicU64,
    pub(crate) given_up: AtomicU64,
}

/// All metrics, as text.
pub(crate) fn text(desk: &Desk) -> String {
    let counts = &desk.counts;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let mut out = String::new();
    let mut add = |name: &str, help: &str, kind: &str, values: &[(String, String)]| {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(out, "{name}{labels} {value}");
        }
    };
    let plain = |value: String| vec![(String::new(), value)];
    let moves = [("moved", &counts.moved), ("refused", &counts.not_moved)];
    let moves =
        moves.map(|(result, counter)| (format!("{{result=\"{result}\"}}"), count(counter).to_string()));
    let name = "dxpu_functions_moves_total";
    add(name, "Running instances that were to move to an idle GPU.", "counter", &moves);
    let name = "dxpu_functions_resumes_total";
    let help = "Sessions in which a program went on after a loss or a move.";
    add(name, help, "counter", &plain(count(&counts.resumed).to_string()));
    let name = "dxpu_functions_resume_seconds_total";
    let paused = format!("{:.3}", count(&counts.paused_ms) as f64 / 1000.0);
    add(name, "How long programs stood still until they went on.", "counter", &plain(paused));
    let name = "dxpu_functions_given_up_total";
    let help = "Programs for which no place was found after a loss.";
    add(name, help, "counter", &plain(count(&counts.given_up).to_string()));
    let loads = desk.loads();
    let of = |value: fn(&functions::GpuLoad) -> u32| -> Vec<(String, String)> {
        loads.iter().map(|load| (format!("{{gpu=\"{}\"}}", load.slot.0), value(load).to_string())).collect()
    };
    let name = "dxpu_functions_gpu_instances";
    add(
        name,
        "Instances with a place on each GPU that the service holds.",
        "gauge",
        &of(|load| load.instances),
    );
    let name = "dxpu_functions_gpu_running";
    add(name, "Those of them that have an invocation.", "gauge", &of(|load| load.running));
    out
}
