//! What nodes look like in a drawing of a graph, in the driver's words.

use super::{graph_attributes, graph_params};
use crate::state::{Copy, Item, KernelNode, NodeOp, Place, client};
use cuda_abi::*;
use cuda_client::graph::{GraphId, Graphs, dot::DotNode};

/// `CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE`. Flags that name one kind of detail show no more than this one does.
const VERBOSE: u32 = 1;
/// `CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW` and `CU_LAUNCH_ATTRIBUTE_PRIORITY`.
const CACHE_WINDOW: u32 = 1;
const PRIORITY: u32 = 8;

/// The drawing of a graph.
pub(crate) fn text(graphs: &Graphs<Item>, graph: GraphId, flags: u32) -> CuResult<String> {
    let verbose = flags & VERBOSE != 0;
    graphs.dot(graph, verbose, &|node| if verbose { in_detail(node) } else { in_short(node) })
}

fn rectangle(lines: &str) -> String {
    format!("style=\"solid\" shape=\"rectangle\" label=\"{lines}\n\"")
}

fn in_short(node: &DotNode<'_, Item>) -> String {
    let number = node.number;
    match &node.payload.op {
        NodeOp::Kernel(kernel) => {
            format!("style=\"bold\" shape=\"octagon\" label=\"{number}\n{}\n\"", name(kernel))
        }
        NodeOp::Fill { shape, value, .. } => {
            let bytes = shape.bytes().unwrap_or(0);
            format!("style=\"solid\" shape=\"invtrapezium\"label=\"{number}\nMEMSET\n({value},{bytes})\n\"")
        }
        NodeOp::Copy { copy, .. } => {
            let bytes = copy.shape.bytes().unwrap_or(0);
            format!(
                "style=\"solid\" shape=\"trapezium\"label=\"{number}\nMEMCPY\n({},{bytes})\n\"",
                direction(copy)
            )
        }
        _ => rectangle(&format!("{number}\n{}", kind(node))),
    }
}

fn in_detail(node: &DotNode<'_, Item>) -> String {
    let id = format!("{} (topoId: {})", node.number, node.topological);
    let handle = address(node.id.0);
    match &node.payload.op {
        NodeOp::Kernel(kernel) => kernel_in_detail(kernel, &id, &handle),
        NodeOp::Fill { target, shape, element_bytes, value, .. } => {
            let width = shape.width / u64::from(*element_bytes).max(1);
            format!(
                "style=\"solid\" style=\"solid\" shape=\"record\" label=\"{{MEMSET\n\
                 | {{{{ID | node handle | dptr | pitch | value | elementSize | width | height}} | {{{id} | {handle} \
                 | {} | {} | {value} | {element_bytes} | {width} | {}}}}}}}\"",
                address(target.address),
                target.row_pitch,
                shape.height,
            )
        }
        NodeOp::Copy { copy, .. } => copy_in_detail(node.payload, copy, &id, &handle),
        NodeOp::Host { function, user_data } => rectangle(&format!(
            "{id}\nHOST\nnode handle: {handle}\nfn: {}\nuserData: {}",
            address(function.address()),
            address(*user_data)
        )),
        NodeOp::Record { event, .. } | NodeOp::Wait { event, .. } => {
            let kind = kind(node);
            rectangle(&format!("{id}\n{kind}\nnode handle: {handle}\nevent: {}", address(event.handle)))
        }
        NodeOp::Allocate { address: at, bytes, .. } => format!(
            "style=\"solid\" shape=\"record\" label=\"{{\nMEM_ALLOC\n| {{{{ID | node handle}} | {{{id} | {handle}}}}}\n\
             | {{{{bytesize | dptr}} | {{{bytes} | {}}}}}\n}}\"",
            address(*at)
        ),
        NodeOp::Free { address: at } => format!(
            "style=\"solid\" shape=\"record\" label=\"{{\nMEM_FREE\n| {{{{ID | node handle}} | {{{id} | {handle}}}}}\n\
             | {{{{dptr}} | {{{}}}}}\n}}\"",
            address(*at)
        ),
        _ => rectangle(&format!("{id}\n{}\nnode handle: {handle}", kind(node))),
    }
}

fn kernel_in_detail(kernel: &KernelNode, id: &str, handle: &str) -> String {
    let blocks: u64 = kernel.grid.iter().map(|extent| u64::from(*extent)).product();
    let threads: u64 = kernel.block.iter().map(|extent| u64::from(*extent)).product();
    let launch = format!("{}\\<\\<\\<{blocks},{threads},{}\\>\\>\\>", name(kernel), kernel.shared_bytes);
    let attribute = |id| graph_attributes::get(kernel, id).unwrap_or_default();
    let window: CUaccessPolicyWindow = attribute(CACHE_WINDOW).get();
    let property = |value: u32| ['N', 'S', 'P'].get(value as usize).copied().unwrap_or('N');
    format!(
        "style=\"bold\" shape=\"record\" label=\"{{KERNEL\n| {{ID | {id} | {launch}}}\n\
         | {{{{node handle | func handle}} | {{{handle} | {}}}}}\n\
         | {{accessPolicyWindow | {{base_ptr | num_bytes | hitRatio | hitProp | missProp}} | {{{} | {} | {:.6} | {} | \
         {}}}}}\n| {{cooperative | {}}}\n| {{priority | {}}}\n}}\"",
        address(kernel.handle),
        address(window.base_ptr),
        window.num_bytes,
        window.hit_ratio,
        property(window.hit_prop),
        property(window.miss_prop),
        u32::from(kernel.cooperative),
        attribute(PRIORITY).get::<i32>(),
    )
}

fn copy_in_detail(item: &Item, copy: &Copy, id: &str, handle: &str) -> String {
    const COLUMNS: &str = "MemoryType | Array | Host | Device | XInBytes | Y | Z | Pitch | Height | LOD";
    let given = graph_params::memcpy_for_c(item).unwrap_or_default();
    let memory = |kind: u32, place: &Place| {
        let asked = match kind {
            CU_MEMORYTYPE_HOST => "HOST",
            CU_MEMORYTYPE_DEVICE => "DEVICE",
            CU_MEMORYTYPE_ARRAY => "ARRAY",
            _ => "UNIFIED",
        };
        let found = match place {
            Place::Device(_) => "DEVICE",
            Place::Host(region) => {
                let (address, span) = region.span();
                let pinned = client().is_ok_and(|client| client.pinned.holds(address, span));
                if pinned { "HOST PINNED" } else { "HOST PAGEABLE" }
            }
        };
        format!("{asked} ({found})")
    };
    let source = format!(
        "{} | {} | {} | {} | {} | {} | {} | {} | {} | {}",
        memory(given.src_memory_type, &copy.source),
        address(given.src_array),
        address(given.src_host),
        address(given.src_device),
        given.src_x_in_bytes,
        given.src_y,
        given.src_z,
        given.src_pitch,
        given.src_height,
        given.src_lod,
    );
    let target = format!(
        "{} | {} | {} | {} | {} | {} | {} | {} | {} | {}",
        memory(given.dst_memory_type, &copy.target),
        address(given.dst_array),
        address(given.dst_host),
        address(given.dst_device),
        given.dst_x_in_bytes,
        given.dst_y,
        given.dst_z,
        given.dst_pitch,
        given.dst_height,
        given.dst_lod,
    );
    format!(
        "style=\"solid\" shape=\"record\" label=\"{{\nMEMCPY\n| {{{{ID | node handle}} | {{{id} | {handle}}}}}\n\
         | {{{{src | dst}} | {{ {COLUMNS} | {COLUMNS}}} | {{{source} | {target}}}}}\n\
         | {{Extent | {{WidthInBytes | Height | Depth}} | {{{} | {} | {}}}}}\n}}\"",
        copy.shape.width, copy.shape.height, copy.shape.depth,
    )
}

fn kind(node: &DotNode<'_, Item>) -> String {
    let word = match &node.payload.op {
        NodeOp::Kernel(_) => "KERNEL",
        NodeOp::Copy { .. } => "MEMCPY",
        NodeOp::Fill { .. } => "MEMSET",
        NodeOp::Host { .. } => "HOST",
        NodeOp::Empty => "EMPTY",
        NodeOp::Wait { .. } => "EVENT_WAIT",
        NodeOp::Record { .. } => "EVENT_RECORD",
        NodeOp::Allocate { .. } => "MEM_ALLOC",
        NodeOp::Free { .. } => "MEM_FREE",
        NodeOp::MemoryOps { .. } => "BATCH_MEM_OP",
        NodeOp::Conditional(_) => "CONDITIONAL",
        NodeOp::Child(_) => return node.child.clone().unwrap_or_default(),
    };
    word.to_owned()
}

fn direction(copy: &Copy) -> &'static str {
    match (&copy.source, &copy.target) {
        (Place::Host(_), Place::Host(_)) => "HtoH",
        (Place::Host(_), Place::Device(_)) => "HtoD",
        (Place::Device(_), Place::Host(_)) => "DtoH",
        (Place::Device(_), Place::Device(_)) => "DtoD",
    }
}

fn name(kernel: &KernelNode) -> String {
    kernel.function.sheet.name.to_string_lossy().into_owned()
}

fn address(value: u64) -> String {
    format!("0x{value:016X}")
}
