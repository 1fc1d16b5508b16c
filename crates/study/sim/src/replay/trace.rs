//! A recorded cluster: servers with GPUs, and the pods that were asked for.
//!
//! The format is that of Alibaba's cluster-trace-gpu-v2023: `openb_node_list_gpu_node.csv` and
//! `openb_pod_list_NAME.csv`. Times in it play no part in the replay, as in the published one.

use super::csv::{Row, Table, TraceError};
use super::published::Published;
use pool::{GPU_MILLI, GpuNeed, ModelId, Models, Request, SLOTS_PER_BOX_MAX, Shape};
use std::path::{Path, PathBuf};

const NODE_FILE: &str = "openb_node_list_gpu_node.csv";

/// The published lists that may be met here, and what is in them: rows cut off at the end of a line leave no trace in
/// the file itself, and a result over a part must not pass for one over the whole.
const PUBLISHED_LISTS: [PublishedList; 3] = [
    PublishedList { name: "default", pods: 8_152, gpu_milli: 6_086_800 },
    PublishedList { name: "gpushare40", pods: 8_152, gpu_milli: 5_641_250 },
    PublishedList { name: "multigpu20", pods: 8_324, gpu_milli: 7_086_800 },
];
const PUBLISHED_NODES: usize = 1_213;
const PUBLISHED_GPUS: usize = 6_212;

struct PublishedList {
    name: &'static str,
    pods: usize,
    gpu_milli: u64,
}

/// A server with GPUs in it.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Thousandths of a processor.
    pub cpu_milli: u32,
    /// Memory.
    pub memory_mib: u64,
    /// How many GPUs.
    pub gpus: usize,
    /// The model of its GPUs.
    pub model: ModelId,
}

/// Something that was asked for.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// What it needs.
    pub request: Request,
}

impl Pod {
    /// Thousandths of GPUs it needs in all.
    pub fn gpu_milli(&self) -> u64 {
        u64::from(self.request.shape.gpus.total_milli())
    }
}

/// A recorded cluster with one list of pods.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The name of the list, such as `default`.
    pub list: String,
    /// Servers, by name.
    pub nodes: Vec<Node>,
    /// Pods, by name.
    pub pods: Vec<Pod>,
    /// The models of GPU that occur.
    pub models: Models,
    /// The published results for this list, where the folder has them.
    pub published: Option<Published>,
}

impl Trace {
    /// Reads the servers, one list of pods, and the published results where they are there.
    pub fn read(folder: &Path, list: &str) -> Result<Self, TraceError> {
        let folder = folder_of(folder);
        let mut models = Models::default();
        let nodes = read_nodes(&folder.join(NODE_FILE), &mut models)?;
        let pod_file = folder.join(format!("{POD_FILE_START}{list}{POD_FILE_END}"));
        if !pod_file.exists() {
            return Err(no_such_list(&folder, pod_file));
        }
        let pods = read_pods(&pod_file, &mut models)?;
        let known = PUBLISHED_LISTS.iter().find(|known| known.name == list);
        if let Some(known) = known {
            check_whole(&folder, &pod_file, known, &nodes, &pods)?;
        }
        let published = Published::read(&folder, list, known.is_some())?;
        let trace = Self { list: list.to_owned(), nodes, pods, models, published };
        if trace.gpus() == 0 {
            let reason = "there is no GPU in this cluster".to_owned();
            return Err(TraceError::File { path: folder.join(NODE_FILE), reason });
        }
        Ok(trace)
    }

    /// How many GPUs the cluster has.
    pub fn gpus(&self) -> usize {
        self.nodes.iter().map(|node| node.gpus).sum()
    }

    /// Thousandths of GPUs the cluster has.
    pub fn gpu_milli(&self) -> u64 {
        self.gpus() as u64 * u64::from(GPU_MILLI)
    }
}

/// The GPU demand of a pod, and its class of service as recorded: `LS` (latency-sensitive), `BE` (best effort) or another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassedPod {
    /// The recorded word.
    pub qos: String,
    /// What it asks for.
    pub gpus: GpuNeed,
}

/// Reads the pods of a list that ask for GPUs, with their classes of service.
pub fn read_classes(folder: &Path, list: &str) -> Result<Vec<ClassedPod>, TraceError> {
    let path = folder_of(folder).join(format!("{POD_FILE_START}{list}{POD_FILE_END}"));
    let table = Table::read(&path)?;
    let [count, milli, qos] = columns(&table, ["num_gpu", "gpu_milli", "qos"])?;
    let mut pods = Vec::new();
    for row in table.rows() {
        let row = row?;
        let gpus = gpu_need(&row, row.number(count)?, row.number(milli)?)?;
        if gpus != GpuNeed::None {
            pods.push(ClassedPod { qos: row.text(qos).to_owned(), gpus });
        }
    }
    Ok(pods)
}

const POD_FILE_START: &str = "openb_pod_list_";
const POD_FILE_END: &str = ".csv";

/// The folder itself, or the one of this trace in a folder of traces.
fn folder_of(folder: &Path) -> PathBuf {
    let inner = folder.join("openb");
    if !folder.join(NODE_FILE).exists() && inner.join(NODE_FILE).exists() { inner } else { folder.to_owned() }
}

fn no_such_list(folder: &Path, path: PathBuf) -> TraceError {
    let name = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        Some(name.strip_prefix(POD_FILE_START)?.strip_suffix(POD_FILE_END)?.to_owned())
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut lists: Vec<String> = entries.filter_map(|entry| name(entry.ok()?)).collect();
    lists.sort();
    let reason = match lists.is_empty() {
        true => "there is no such file, and no other list of pods in this folder".to_owned(),
        false => format!("there is no such list; this folder has {}", lists.join(", ")),
    };
    TraceError::File { path, reason }
}

fn read_nodes(path: &Path, models: &mut Models) -> Result<Vec<Node>, TraceError> {
    let table = Table::read(path)?;
    let [name, cpu, memory, gpu, model] = columns(&table, ["sn", "cpu_milli", "memory_mib", "gpu", "model"])?;
    let mut nodes: Vec<Node> = Vec::new();
    for row in table.rows() {
        let row = row?;
        let gpus = row.number(gpu)?;
        if gpus > SLOTS_PER_BOX_MAX {
            return Err(row.wrong(format_args!("{gpus} GPUs in one server; {SLOTS_PER_BOX_MAX} is the most")));
        }
        let name = next_name(&row, name, nodes.last().map(|node| node.name.as_str()))?;
        let model = models.id(row.text(model)).map_err(|error| row.wrong(error))?;
        nodes.push(Node { name, cpu_milli: row.number(cpu)?, memory_mib: row.number(memory)?, gpus, model });
    }
    if nodes.is_empty() { Err(table.wrong_file("there is no server in it")) } else { Ok(nodes) }
}

fn read_pods(path: &Path, models: &mut Models) -> Result<Vec<Pod>, TraceError> {
    let table = Table::read(path)?;
    let [name, cpu, memory, count, milli] =
        columns(&table, ["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"])?;
    let spec = table.optional_column("gpu_spec");
    let mut pods: Vec<Pod> = Vec::new();
    for row in table.rows() {
        let row = row?;
        let gpus = gpu_need(&row, row.number(count)?, row.number(milli)?)?;
        // Without a GPU, a model means nothing.
        let spec = spec.filter(|_| gpus != GpuNeed::None).map_or("", |spec| row.text(spec));
        let accepted = models.filter(spec).map_err(|error| row.wrong(error))?;
        let shape = Shape { cpu_milli: row.number(cpu)?, gpus, models: accepted };
        let name = next_name(&row, name, pods.last().map(|pod| pod.name.as_str()))?;
        pods.push(Pod { name, request: Request { shape, memory_mib: row.number(memory)? } });
    }
    if pods.is_empty() { Err(table.wrong_file("there is no pod in it")) } else { Ok(pods) }
}

fn columns<const N: usize>(table: &Table, names: [&str; N]) -> Result<[usize; N], TraceError> {
    let mut found = [0; N];
    for (column, name) in found.iter_mut().zip(names) {
        *column = table.column(name)?;
    }
    Ok(found)
}

fn gpu_need(row: &Row<'_>, count: u32, milli: u32) -> Result<GpuNeed, TraceError> {
    match (count, milli.min(GPU_MILLI)) {
        (0, _) => Ok(GpuNeed::None),
        (_, 0) => Err(row.wrong("a pod with GPUs must need something of them, and gpu_milli is 0")),
        (count, GPU_MILLI) => {
            let count = u8::try_from(count).ok().filter(|&count| usize::from(count) <= SLOTS_PER_BOX_MAX);
            count.map(GpuNeed::Whole).ok_or_else(|| row.wrong("more GPUs than a server can have"))
        }
        (1, milli) => Ok(GpuNeed::Share(milli as u16)),
        (count, milli) => {
            Err(row.wrong(format_args!("{count} shares of {milli} thousandths: a share is of one GPU only")))
        }
    }
}

/// Names must rise: the replay's order starts from the order of names, and a repeated line would count twice.
fn next_name(row: &Row<'_>, column: usize, before: Option<&str>) -> Result<String, TraceError> {
    let name = row.text(column);
    match before {
        _ if name.is_empty() => Err(row.wrong("there is no name")),
        Some(before) if before >= name => {
            Err(row.wrong(format_args!("{name:?} follows {before:?}: names must be in rising order")))
        }
        _ => Ok(name.to_owned()),
    }
}

fn check_whole(
    folder: &Path,
    pod_file: &Path,
    known: &PublishedList,
    nodes: &[Node],
    pods: &[Pod],
) -> Result<(), TraceError> {
    let gpus: usize = nodes.iter().map(|node| node.gpus).sum();
    if (nodes.len(), gpus) != (PUBLISHED_NODES, PUBLISHED_GPUS) {
        let reason = format!(
            "{} servers with {gpus} GPUs, where the published cluster has {PUBLISHED_NODES} with {PUBLISHED_GPUS}: \
             truncated or altered (a cluster of your own needs a list name of its own)",
            nodes.len()
        );
        return Err(TraceError::File { path: folder.join(NODE_FILE), reason });
    }
    let milli: u64 = pods.iter().map(Pod::gpu_milli).sum();
    if (pods.len(), milli) != (known.pods, known.gpu_milli) {
        let reason = format!(
            "{} pods with {milli} thousandths of GPUs, where the published list has {} with {}: \
             truncated or altered (a list of your own needs a name of its own)",
            pods.len(),
            known.pods,
            known.gpu_milli
        );
        return Err(TraceError::File { path: pod_file.to_owned(), reason });
    }
    Ok(())
}
