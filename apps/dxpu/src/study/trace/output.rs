//! A recording for people, for programs and as a figure.

use crate::support::table;
use model::profile::{CopyClass, Profile, Summary};
use serde_json::{Value, json};
use sim::plot::{Axis, Chart, Series, Stroke};
use std::fmt::Write;
use std::path::Path;

/// Characters of the longest bar.
const BAR: usize = 40;
/// Kernels that are listed.
const LISTED_KERNELS: usize = 8;
/// Names are cut to this.
const NAME_CHARACTERS: usize = 60;

pub(super) fn text(path: &Path, profile: &Profile, summary: &Summary) -> String {
    let mut text = String::new();
    let put = &mut text;
    let say = |put: &mut String, line: String| writeln!(put, "{line}").expect("a string takes everything");
    say(put, format!("{} on {}: {}", profile.program, profile.device, path.display()));
    say(
        put,
        format!(
            "{:.3} s, {} launches ({} graphs), {} memsets, {} waits, {} questions, {} calls for state",
            summary.wall_us / 1e6,
            summary.launches,
            summary.graph_launches,
            summary.memsets,
            summary.waits,
            summary.queries,
            summary.local_calls
        ),
    );
    if let Some(measured) = &profile.measured {
        let (sampled, clean, operations) = (measured.sampled, measured.clean, measured.operations);
        say(
            put,
            format!(
                "durations on the GPU: {sampled} of {operations} operations timed, {clean} of them clean, the others by their like"
            ),
        );
        if let Some(scaled) = measured.scaled {
            say(put, format!("all durations scaled by {scaled:.3}: there was no time for more"));
        }
    }
    if summary.launches > 0 {
        let (mean, period) = (summary.mean_kernel_us(), summary.mean_period_us());
        say(put, format!("\na kernel of {mean:.1} us every {period:.1} us\n"));
        put.push_str(&histogram(summary));
        put.push('\n');
        put.push_str(&kernels(summary));
    }
    if !summary.copies.is_empty() {
        put.push('\n');
        put.push_str(&copies(&summary.copies));
    }
    text
}

/// Where a class of times begins.
fn class_from(class: usize) -> String {
    match class {
        0 => "below 1 us".to_owned(),
        class if class <= 10 => format!("from {} us", 1u64 << (class - 1)),
        class => format!("from {:.1} ms", f64::powi(2.0, class as i32 - 1) / 1e3),
    }
}

fn histogram(summary: &Summary) -> String {
    let (durations, periods) = (&summary.duration_classes, &summary.period_classes);
    let most = durations.iter().chain(periods).copied().max().unwrap_or(1).max(1);
    let bar = |count: u64, letter: &str| letter.repeat((count as usize * BAR).div_ceil(most as usize));
    let count = |classes: &[u64], class: usize| classes.get(class).copied().unwrap_or(0);
    let used = |class: &usize| count(durations, *class) + count(periods, *class) > 0;
    let classes = 0..durations.len().max(periods.len());
    let (first, last) = (classes.clone().find(&used).unwrap_or(0), classes.rev().find(&used).unwrap_or(0));
    let mut text = format!("{:>14}  {:>8}  {:<BAR$}  {:>8}\n", "", "lasts", "", "apart");
    for class in first..=last {
        let (lasts, apart) = (count(durations, class), count(periods, class));
        let line = format!(
            "{:>14}  {lasts:>8}  {:<BAR$}  {apart:>8}  {}",
            class_from(class),
            bar(lasts, "█"),
            bar(apart, "░")
        );
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn kernels(summary: &Summary) -> String {
    let mut kernels: Vec<_> = summary.kernels.iter().collect();
    kernels.sort_by(|a, b| b.gpu_us.total_cmp(&a.gpu_us));
    let rows: Vec<Vec<String>> = kernels
        .iter()
        .take(LISTED_KERNELS)
        .map(|kernel| {
            vec![
                kernel.name.chars().take(NAME_CHARACTERS).collect(),
                kernel.launches.to_string(),
                format!("{:.1}", kernel.gpu_us / kernel.launches.max(1) as f64),
                format!("{:.1} %", 100.0 * kernel.gpu_us / summary.kernel_us.max(f64::MIN_POSITIVE)),
            ]
        })
        .collect();
    table::figures(&["kernels with the most GPU time", "launches", "us each", "share"], &rows)
}

fn copies(copies: &[CopyClass]) -> String {
    let rows: Vec<Vec<String>> = copies
        .iter()
        .map(|copies| {
            let host = if copies.pinned { ", pinned" } else { "" };
            let waits = if copies.waits { ", waited for" } else { "" };
            vec![
                format!("{}{host}{waits}", copies.direction.name()),
                copies.bytes_from.to_string(),
                copies.count.to_string(),
                format!("{:.3}", copies.bytes as f64 / 1e6),
                format!("{:.3}", copies.gpu_us / 1e3),
            ]
        })
        .collect();
    table::figures(&["copies", "from bytes", "number", "MB", "ms"], &rows)
}

pub(super) fn object(path: &Path, profile: &Profile, summary: &Summary) -> Value {
    json!({
        "profile": path.to_string_lossy(),
        "program": profile.program,
        "device": profile.device,
        "measured": profile.measured,
        "wall_us": summary.wall_us,
        "launches": summary.launches,
        "graph_launches": summary.graph_launches,
        "short_launches": summary.short_launches,
        "kernel_us": summary.kernel_us,
        "mean_kernel_us": summary.mean_kernel_us(),
        "mean_period_us": summary.mean_period_us(),
        "memsets": summary.memsets,
        "waits": summary.waits,
        "queries": summary.queries,
        "awaited_calls": summary.awaited_calls,
        "local_calls": summary.local_calls,
        "duration_classes": summary.duration_classes,
        "period_classes": summary.period_classes,
        "kernels": summary.kernels.iter().map(|kernel| json!({
            "name": kernel.name,
            "launches": kernel.launches,
            "gpu_us": kernel.gpu_us,
        })).collect::<Vec<_>>(),
        "copies": summary.copies.iter().map(|copies| json!({
            "direction": copies.direction.name(),
            "pinned": copies.pinned,
            "waits": copies.waits,
            "bytes_from": copies.bytes_from,
            "count": copies.count,
            "bytes": copies.bytes,
            "gpu_us": copies.gpu_us,
        })).collect::<Vec<_>>(),
    })
}

/// Both distributions, as the part of launches up to each time. The axis of times is in powers of two.
pub(super) fn figure(profile: &Profile, summary: &Summary) -> String {
    let line = |name: &str, classes: &[u64], stroke| {
        let total = classes.iter().sum::<u64>().max(1) as f64;
        let mut sum = 0;
        let points = classes.iter().enumerate().map(|(class, count)| {
            sum += count;
            (class as f64, 100.0 * sum as f64 / total)
        });
        Series { name: name.to_owned(), points: points.collect(), stroke }
    };
    let classes = summary.duration_classes.len().max(summary.period_classes.len()).max(2);
    let chart = Chart {
        title: "Launches up to each time, %".to_owned(),
        x: Axis { label: "us, as a power of two".to_owned(), from: 0.0, to: (classes - 1) as f64 },
        y: Axis { label: "% of launches".to_owned(), from: 0.0, to: 100.0 },
        series: vec![
            line("duration on the GPU", &summary.duration_classes, Stroke::Solid),
            line("time since the launch before", &summary.period_classes, Stroke::Dashed),
        ],
    };
    sim::plot::figure(&profile.program, &[chart])
}
