//! What `dxpu smi` shows. Pure.

use super::ask::{Gpu, Process};
use cuda_wire::DeviceStatus;
use serde::Serialize;
use std::fmt::Write;

/// Everything that is shown.
#[derive(Serialize)]
pub(super) struct Seen {
    driver_version: Option<String>,
    cuda_version: Option<String>,
    gpus: Vec<Row>,
    processes: Vec<Process>,
}

#[derive(Serialize)]
struct Row {
    index: usize,
    worker: String,
    /// Nothing else is known of a GPU that is lost.
    lost: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_total_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    utilization_percent: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature_c: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    power_mw: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    power_limit_mw: Option<u32>,
}

impl Seen {
    pub(super) fn of(gpus: &[Gpu], processes: Vec<Process>) -> Self {
        let first = gpus.iter().find_map(|gpu| gpu.status.as_ref());
        Self {
            driver_version: first.map(|status| status.driver_version.clone()),
            cuda_version: first
                .map(|status| format!("{}.{}", status.cuda_version / 1000, status.cuda_version % 1000 / 10)),
            gpus: gpus.iter().enumerate().map(|(index, gpu)| row(index, gpu)).collect(),
            processes,
        }
    }
}

fn row(index: usize, gpu: &Gpu) -> Row {
    let status = gpu.status.as_ref();
    let text = |of: fn(&DeviceStatus) -> String| status.map(of);
    Row {
        index,
        worker: gpu.worker.to_string(),
        lost: status.is_none(),
        name: text(|status| status.name.clone()),
        uuid: text(|status| status.uuid.clone()),
        memory_used_bytes: status.map(|status| status.memory_used_bytes + status.memory_reserved_bytes),
        memory_total_bytes: status.map(|status| status.memory_total_bytes),
        utilization_percent: status.and_then(|status| status.utilization_gpu_percent),
        temperature_c: status.and_then(|status| status.temperature_c),
        power_mw: status.and_then(|status| status.power_mw),
        power_limit_mw: status.and_then(|status| status.power_limit_enforced_mw.or(status.power_limit_mw)),
    }
}

/// Columns between the frames.
const WIDTH: usize = 91;

/// As people know it.
pub(super) fn table(seen: &Seen) -> String {
    let rule = |line: char| format!("+{}+\n", line.to_string().repeat(WIDTH));
    let mut text = rule('-');
    let line = |text: &mut String, content: &str| {
        let content: String = content.chars().take(WIDTH - 2).collect();
        let _ = writeln!(text, "| {content:<width$} |", width = WIDTH - 2);
    };
    let dash = || "-".to_owned();
    let versions = format!(
        "dxpu smi {}    driver {}    CUDA {}",
        env!("CARGO_PKG_VERSION"),
        seen.driver_version.clone().unwrap_or_else(dash),
        seen.cuda_version.clone().unwrap_or_else(dash)
    );
    line(&mut text, &versions);
    text += &rule('-');
    let columns = |gpu: &str, name: &str, temp: &str, power: &str, memory: &str, busy: &str| {
        format!("{gpu:>3}  {name:<28}  {temp:>5}  {power:>13}  {memory:>21}  {busy:>8}")
    };
    line(&mut text, &columns("GPU", "Name", "Temp", "Power/Cap", "Memory-Usage", "GPU-Util"));
    line(&mut text, "     UUID, worker");
    text += &rule('=');
    for gpu in &seen.gpus {
        if gpu.lost {
            line(&mut text, &columns(&gpu.index.to_string(), "lost", "-", "-", "-", "-"));
            line(&mut text, &format!("     {}", gpu.worker));
            continue;
        }
        let watts = |mw: Option<u32>| mw.map_or_else(dash, |mw| format!("{}W", (mw + 500) / 1000));
        let power = match (gpu.power_mw, gpu.power_limit_mw) {
            (None, None) => dash(),
            (now, cap) => format!("{} / {}", watts(now), watts(cap)),
        };
        let mib = |bytes: Option<u64>| bytes.map_or_else(dash, |bytes| format!("{}MiB", bytes >> 20));
        let row = columns(
            &gpu.index.to_string(),
            &gpu.name.as_deref().unwrap_or("-").chars().take(28).collect::<String>(),
            &gpu.temperature_c.map_or_else(dash, |celsius| format!("{celsius}C")),
            &power,
            &format!("{} / {}", mib(gpu.memory_used_bytes), mib(gpu.memory_total_bytes)),
            &gpu.utilization_percent.map_or_else(dash, |percent| format!("{percent}%")),
        );
        line(&mut text, &row);
        line(&mut text, &format!("     {}, {}", gpu.uuid.as_deref().unwrap_or("-"), gpu.worker));
    }
    text += &rule('-');
    line(&mut text, "Processes of yours on this machine that use these GPUs:");
    if seen.processes.is_empty() {
        line(&mut text, "     none");
    }
    for process in &seen.processes {
        line(&mut text, &format!("{:>8}  {}", process.pid, process.name));
    }
    text += &rule('-');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus() -> Vec<Gpu> {
        let status = DeviceStatus {
            driver_version: "580.159.04".into(),
            cuda_version: 13_000,
            name: "NVIDIA H200".into(),
            uuid: "GPU-12345678-1234-1234-1234-123456789abc".into(),
            memory_total_bytes: 141 << 30,
            memory_used_bytes: 3 << 30,
            memory_reserved_bytes: 512 << 20,
            utilization_gpu_percent: Some(97),
            power_mw: Some(412_600),
            power_limit_enforced_mw: Some(700_000),
            ..DeviceStatus::default()
        };
        let worker: transport::Address = "unix:/w".parse().unwrap();
        vec![Gpu { worker: worker.clone(), status: Some(status) }, Gpu { worker, status: None }]
    }

    #[test]
    fn the_table_reads_as_people_know_it() {
        let mine = vec![Process { pid: 4711, name: "python".into() }];
        let text = table(&Seen::of(&gpus(), mine));
        let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{text}");
        for expected in [
            "driver 580.159.04    CUDA 13.0",
            "  0  NVIDIA H200",
            "413W / 700W",
            "3584MiB / 144384MiB",
            "97%",
            "GPU-12345678-1234-1234-1234-123456789abc, unix:/w",
            "  1  lost",
            "4711  python",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        assert!(!text.contains("C  "), "a temperature that is not told is not made up:\n{text}");
    }

    #[test]
    fn json_has_what_is_known_and_nothing_else() {
        let json = serde_json::to_value(Seen::of(&gpus(), Vec::new())).unwrap();
        assert_eq!(json["gpus"][0]["memory_total_bytes"], 141_u64 << 30);
        assert_eq!(json["gpus"][0].get("temperature_c"), None);
        assert_eq!(json["gpus"][1], serde_json::json!({"index": 1, "worker": "unix:/w", "lost": true}));
    }
}
