//! Memory of allocation nodes: placed when the node is made, there while a launch has allocated it and nothing freed it.

use super::{AllocationKind, Context, client, graphs, memory_of};
use cuda_abi::{CuResult, CudaError};
use cuda_client::graph::GraphId;
use std::collections::HashMap;

/// All memory of allocation nodes, and each device's books.
#[derive(Default)]
pub(crate) struct GraphMemory {
    blocks: HashMap<u64, Block>,
    books: HashMap<usize, Books>,
    /// Executable graphs by the graph with memory they were made of: one at a time.
    instantiated: HashMap<GraphId, u64>,
}

struct Block {
    bytes: u64,
    device: usize,
    graph: GraphId,
    /// A launch allocated it and nothing freed it since.
    allocated: bool,
    /// A node of some graph frees it.
    free_nodes: Vec<GraphId>,
}

/// `CUgraphMem_attribute` of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Books {
    used: u64,
    used_high: u64,
    reserved: u64,
    reserved_high: u64,
}

impl Books {
    fn take(&mut self, bytes: u64) {
        self.used += bytes;
        self.used_high = self.used_high.max(self.used);
        self.reserved = self.reserved.max(self.used);
        self.reserved_high = self.reserved_high.max(self.reserved);
    }

    fn give(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
    }
}

/// What a launch does to memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryPlan {
    /// Allocated and not freed by the same graph.
    pub(crate) stays: Vec<u64>,
    /// Freed, but allocated by another graph.
    pub(crate) frees: Vec<u64>,
    /// Allocated and freed.
    pub(crate) passes: Vec<u64>,
}

impl MemoryPlan {
    /// Whether a launch does nothing to memory.
    pub(crate) fn is_empty(&self) -> bool {
        self.stays.is_empty() && self.frees.is_empty() && self.passes.is_empty()
    }

    /// The plan of a graph that has these allocation and free nodes.
    pub(crate) fn new(allocated: &[u64], freed: &[u64]) -> Self {
        let split = |of: &[u64], other: &[u64], both: bool| -> Vec<u64> {
            of.iter().copied().filter(|address| other.contains(address) == both).collect()
        };
        Self {
            stays: split(allocated, freed, false),
            frees: split(freed, allocated, false),
            passes: split(allocated, freed, true),
        }
    }
}

impl GraphMemory {
    /// Notes the memory of a new allocation node.
    pub(crate) fn add(&mut self, address: u64, bytes: u64, device: usize, graph: GraphId) {
        let block = Block { bytes, device, graph, allocated: false, free_nodes: Vec::new() };
        self.blocks.insert(address, block);
    }

    /// Notes a new free node: the memory must be a graph's, and no node of this graph frees it yet.
    pub(crate) fn add_free(&mut self, address: u64, graph: GraphId) -> CuResult<()> {
        let block = self.blocks.get_mut(&address).ok_or(CudaError::INVALID_VALUE)?;
        let reachable = block.graph == graph || block.allocated;
        if !reachable || block.free_nodes.contains(&graph) {
            return Err(CudaError::INVALID_VALUE);
        }
        block.free_nodes.push(graph);
        Ok(())
    }

    /// Takes a free node back that could not be made.
    pub(crate) fn remove_free(&mut self, address: u64, graph: GraphId) {
        if let Some(block) = self.blocks.get_mut(&address) {
            block.free_nodes.retain(|other| *other != graph);
        }
    }

    /// The graph whose node allocates this memory.
    fn graph_of(&self, address: u64) -> Option<GraphId> {
        self.blocks.get(&address).map(|block| block.graph)
    }

    /// cuMemFree or cuMemFreeAsync on memory of a graph. The addresses stay with the graph, for its next launch.
    pub(crate) fn freed(&mut self, address: u64) -> CuResult<()> {
        let block = self.blocks.get_mut(&address).filter(|block| block.allocated);
        let block = block.ok_or(CudaError::INVALID_VALUE)?;
        block.allocated = false;
        self.books.entry(block.device).or_default().give(block.bytes);
        Ok(())
    }

    /// A launch begins. With `auto_free`, returns the memory that must be freed first; without it, memory that is still
    /// allocated is an error.
    pub(crate) fn launch(&mut self, plan: &MemoryPlan, auto_free: bool) -> CuResult<Vec<u64>> {
        let is_allocated = |address: &u64| self.blocks.get(address).is_some_and(|block| block.allocated);
        let left: Vec<u64> = plan.stays.iter().chain(&plan.passes).copied().filter(is_allocated).collect();
        if (!left.is_empty() && !auto_free) || !plan.frees.iter().all(is_allocated) {
            return Err(CudaError::INVALID_VALUE);
        }
        for address in left.iter().chain(&plan.frees) {
            self.freed(*address)?;
        }
        for address in plan.stays.iter().chain(&plan.passes) {
            if let Some(block) = self.blocks.get_mut(address) {
                block.allocated = true;
                self.books.entry(block.device).or_default().take(block.bytes);
            }
        }
        for address in &plan.passes {
            self.freed(*address)?;
        }
        Ok(left)
    }

    /// A graph with memory is instantiated: it may have one executable graph at a time.
    pub(crate) fn instantiate(&mut self, graph: GraphId, exec: u64) -> CuResult<()> {
        if self.instantiated.contains_key(&graph) {
            return Err(CudaError::NOT_SUPPORTED);
        }
        self.instantiated.insert(graph, exec);
        Ok(())
    }

    /// That executable graph ended.
    pub(crate) fn exec_ended(&mut self, exec: u64) {
        self.instantiated.retain(|_, other| *other != exec);
    }

    /// A graph ended: addresses of memory that is not there can be used otherwise. Memory that is there is the
    /// program's to free.
    pub(crate) fn graph_ended(&mut self, graph: GraphId) {
        if self.instantiated.contains_key(&graph) {
            return;
        }
        let gone = |block: &Block| block.graph == graph && !block.allocated;
        let addresses: Vec<(u64, usize)> = self
            .blocks
            .iter()
            .filter(|(_, block)| gone(block))
            .map(|(address, block)| (*address, block.device))
            .collect();
        for (address, device) in addresses {
            self.blocks.remove(&address);
            if let Some(device) = client().ok().and_then(|client| client.devices.get(device)) {
                let _ = device.memory.remove(address);
            }
        }
    }

    /// cuDeviceGetGraphMemAttribute.
    pub(crate) fn attribute(&self, device: usize, attribute: u32) -> CuResult<u64> {
        let books = self.books.get(&device).copied().unwrap_or_default();
        match attribute {
            0 => Ok(books.used),
            1 => Ok(books.used_high),
            2 => Ok(books.reserved),
            3 => Ok(books.reserved_high),
            _ => Err(CudaError::INVALID_VALUE),
        }
    }

    /// cuDeviceSetGraphMemAttribute: the high marks can be set to 0, which means to what is there now.
    pub(crate) fn set_attribute(&mut self, device: usize, attribute: u32, value: u64) -> CuResult<()> {
        let books = self.books.entry(device).or_default();
        match (attribute, value) {
            (1, 0) => books.used_high = books.used,
            (3, 0) => books.reserved_high = books.reserved,
            _ => return Err(CudaError::INVALID_VALUE),
        }
        Ok(())
    }

    /// cuDeviceGraphMemTrim: workers keep no memory that no launch has allocated.
    pub(crate) fn trim(&mut self, device: usize) {
        let books = self.books.entry(device).or_default();
        books.reserved = books.used;
    }
}

/// Frees memory if it is a graph's; false if it is not. The caller tells the worker.
pub(crate) fn free_graph_memory(address: u64) -> CuResult<bool> {
    let kind = memory_of(address).and_then(|device| device.memory.find(address)).map(|known| known.kind);
    if kind != Some(AllocationKind::Graph) {
        return Ok(false);
    }
    let mut store = graphs();
    store.memory.freed(address)?;
    // Nothing can allocate it again when its graph is gone.
    if let Some(graph) = store.memory.graph_of(address)
        && store.graphs.nodes(graph).is_err()
    {
        store.memory.graph_ended(graph);
    }
    Ok(true)
}

/// Places the memory of an allocation node.
pub(crate) fn place_graph_memory(context: &Context, bytes: u64) -> CuResult<u64> {
    let device = context.device()?;
    if bytes > device.info.memory_bytes {
        return Err(CudaError::OUT_OF_MEMORY);
    }
    device.memory.place(context, bytes, AllocationKind::Graph)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: GraphId = GraphId::of_serial(1);
    const B: GraphId = GraphId::of_serial(2);
    const BLOCK: u64 = 0x1000;

    fn one_block() -> GraphMemory {
        let mut memory = GraphMemory::default();
        memory.add(BLOCK, 64, 0, A);
        memory
    }

    #[test]
    fn a_graph_that_leaves_memory_runs_again_only_after_it_was_freed() {
        let mut memory = one_block();
        let plan = MemoryPlan::new(&[BLOCK], &[]);
        assert_eq!(memory.launch(&plan, false), Ok(vec![]));
        assert_eq!(memory.launch(&plan, false), Err(CudaError::INVALID_VALUE));
        assert_eq!(memory.freed(BLOCK), Ok(()));
        assert_eq!(memory.freed(BLOCK), Err(CudaError::INVALID_VALUE));
        assert_eq!(memory.launch(&plan, false), Ok(vec![]));
        assert_eq!(memory.launch(&plan, true), Ok(vec![BLOCK]), "with automatic free");
        assert_eq!(memory.attribute(0, 0), Ok(64));
    }

    #[test]
    fn a_graph_that_frees_its_memory_runs_again() {
        let mut memory = one_block();
        memory.add_free(BLOCK, A).expect("its own memory");
        assert_eq!(memory.add_free(BLOCK, A), Err(CudaError::INVALID_VALUE));
        let plan = MemoryPlan::new(&[BLOCK], &[BLOCK]);
        for _ in 0..2 {
            assert_eq!(memory.launch(&plan, false), Ok(vec![]));
        }
        assert_eq!((memory.attribute(0, 0), memory.attribute(0, 1)), (Ok(0), Ok(64)));
        memory.trim(0);
        assert_eq!((memory.attribute(0, 2), memory.attribute(0, 3)), (Ok(0), Ok(64)));
        assert_eq!(memory.set_attribute(0, 3, 0), Ok(()));
        assert_eq!(memory.attribute(0, 3), Ok(0));
        assert_eq!(memory.set_attribute(0, 3, 1), Err(CudaError::INVALID_VALUE));
    }

    #[test]
    fn another_graph_frees_only_what_is_there() {
        let mut memory = one_block();
        assert_eq!(memory.add_free(BLOCK, B), Err(CudaError::INVALID_VALUE));
        memory.launch(&MemoryPlan::new(&[BLOCK], &[]), false).expect("the first launch");
        assert_eq!(memory.add_free(BLOCK, B), Ok(()));
        let plan = MemoryPlan::new(&[], &[BLOCK]);
        assert_eq!(memory.launch(&plan, false), Ok(vec![]));
        assert_eq!(memory.launch(&plan, false), Err(CudaError::INVALID_VALUE));
    }

    #[test]
    fn a_graph_with_memory_has_one_executable_graph_at_a_time() {
        let mut memory = one_block();
        memory.instantiate(A, 7).expect("the first");
        assert_eq!(memory.instantiate(A, 8), Err(CudaError::NOT_SUPPORTED));
        memory.exec_ended(7);
        assert_eq!(memory.instantiate(A, 8), Ok(()));
    }
}
