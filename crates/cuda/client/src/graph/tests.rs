//! Graphs as the driver keeps them. What is expected here was seen on the real one.

use super::{
    EdgeData, GraphId, Graphs, Mismatch, NodeId, Payload, UpdateResult,
    store::{Edge, KERNEL_NODE},
};
use cuda_abi::CudaError;
use proptest::prelude::*;

/// A node of a drawing: its type and something that can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    kind: u32,
    value: i32,
}

const MEMSET: u32 = 2;
const CHILD: u32 = 4;
const EMPTY: u32 = 5;
const ALLOC: u32 = 10;

/// A value that an executable node refuses.
const FIXED: i32 = -1;

pub(super) const fn empty() -> Work {
    Work { kind: EMPTY, value: 0 }
}

pub(super) const fn kernel(value: i32) -> Work {
    Work { kind: KERNEL_NODE, value }
}

impl Payload for Work {
    fn node_type(&self) -> u32 {
        self.kind
    }

    fn owns_memory(&self) -> bool {
        self.kind == ALLOC
    }

    fn may_become(&self, new: &Self) -> Result<(), UpdateResult> {
        if new.value == FIXED { Err(UpdateResult::ParametersChanged) } else { Ok(()) }
    }
}

const PROGRAMMATIC: EdgeData = EdgeData { from_port: 1, to_port: 0, kind: 1 };

fn after(nodes: &[NodeId]) -> Vec<Edge> {
    nodes.iter().map(|node| Edge { node: *node, data: EdgeData::default() }).collect()
}

/// A graph whose nodes are letters: `"a b:a c:a d:cb"` is four empty nodes, d behind c and b.
struct Drawing {
    graphs: Graphs<Work>,
    graph: GraphId,
    nodes: Vec<NodeId>,
}

impl Drawing {
    fn new(text: &str) -> Self {
        let mut graphs = Graphs::default();
        let (graph, nodes) = draw(&mut graphs, text);
        Self { graphs, graph, nodes }
    }

    fn node(&self, letter: char) -> NodeId {
        self.nodes[letter as usize - 'a' as usize]
    }

    fn add(&mut self, from: char, to: char) -> Result<(), CudaError> {
        self.graphs.add_edge(self.graph, self.node(from), self.node(to), EdgeData::default())
    }

    fn remove(&mut self, from: char, to: char) -> Result<(), CudaError> {
        self.graphs.remove_edge(self.graph, self.node(from), self.node(to), None)
    }

    fn letters(&self, nodes: impl IntoIterator<Item = NodeId>) -> String {
        let letter = |node| {
            self.nodes.iter().position(|known| *known == node).map_or('?', |at| (b'a' + at as u8) as char)
        };
        nodes.into_iter().map(letter).collect()
    }

    fn roots(&self) -> String {
        self.letters(self.graphs.roots(self.graph).expect("a graph"))
    }

    fn edges(&self) -> String {
        let edges = self.graphs.edges(self.graph).expect("a graph");
        edges.iter().map(|(from, to, _)| self.letters([*from, *to])).collect::<Vec<_>>().join(" ")
    }

    fn before(&self, letter: char) -> String {
        let edges = self.graphs.dependencies(self.node(letter)).expect("a node");
        self.letters(edges.iter().map(|edge| edge.node))
    }
}

/// Draws a graph. A capital letter behind a name is its kind: `aK` a kernel, `aM` a memset, `aA` an allocation, `aX` one
/// that cannot be updated.
fn draw(graphs: &mut Graphs<Work>, text: &str) -> (GraphId, Vec<NodeId>) {
    let graph = graphs.create();
    let mut nodes: Vec<NodeId> = Vec::new();
    for word in text.split_whitespace() {
        let (name, deps) = word.split_once(':').unwrap_or((word, ""));
        let work = match name.chars().nth(1) {
            Some('K') => kernel(0),
            Some('M') => Work { kind: MEMSET, value: 0 },
            Some('A') => Work { kind: ALLOC, value: 0 },
            Some('X') => Work { kind: EMPTY, value: FIXED },
            _ => empty(),
        };
        let deps: Vec<NodeId> = deps.bytes().map(|letter| nodes[usize::from(letter - b'a')]).collect();
        nodes.push(graphs.add(graph, &after(&deps), work).expect("a good node"));
    }
    (graph, nodes)
}

#[test]
fn nodes_are_listed_as_made_and_edges_by_their_upstream_node() {
    let drawing = Drawing::new("a b:a c:a d:cb e");
    let all = drawing.graphs.nodes(drawing.graph).expect("a graph").to_vec();
    assert_eq!(drawing.letters(all), "abcde");
    assert_eq!(drawing.edges(), "ab ac bd cd");
    assert_eq!(drawing.before('d'), "cb");
}

#[test]
fn roots_are_listed_youngest_first() {
    let mut drawing = Drawing::new("a b c d e");
    assert_eq!(drawing.roots(), "edcba");
    drawing.add('a', 'b').expect("no edge yet");
    assert_eq!(drawing.roots(), "edca");
    drawing.remove('a', 'b').expect("an edge");
    assert_eq!(drawing.roots(), "bedca");
    drawing.graphs.destroy_node(drawing.node('c')).expect("a node");
    assert_eq!(drawing.roots(), "beda");
    let clone = drawing.graphs.clone_graph(drawing.graph).expect("a graph");
    let of_clone = |letter| drawing.graphs.find_in_clone(drawing.node(letter), clone).expect("in the clone");
    let expected: Vec<NodeId> = "edba".chars().map(of_clone).collect();
    assert_eq!(drawing.graphs.roots(clone).expect("a graph"), expected);
}

#[test]
fn taking_a_dependency_out_puts_the_last_in_its_place() {
    let mut drawing = Drawing::new("a b c d:cab");
    drawing.remove('c', 'd').expect("an edge");
    assert_eq!(drawing.before('d'), "ba");
    drawing.graphs.destroy_node(drawing.node('a')).expect("a node");
    assert_eq!(drawing.before('d'), "b");
}

#[test]
fn an_edge_exists_once_and_not_from_a_node_to_itself() {
    let mut drawing = Drawing::new("a b:a");
    assert_eq!(drawing.add('a', 'b'), Err(CudaError::INVALID_VALUE));
    assert_eq!(drawing.add('a', 'a'), Err(CudaError::INVALID_VALUE));
    assert_eq!(drawing.remove('b', 'a'), Err(CudaError::INVALID_VALUE));
}

#[test]
fn a_circle_can_be_made_but_not_run() {
    let mut drawing = Drawing::new("a b:a c:b");
    assert_eq!(drawing.add('c', 'a'), Ok(()));
    let flat = drawing.graphs.snapshot(drawing.graph).expect("a graph").flatten();
    assert_eq!(flat.err(), Some(CudaError::INVALID_VALUE));
    drawing.remove('c', 'a').expect("an edge");
    assert!(drawing.graphs.snapshot(drawing.graph).expect("a graph").flatten().is_ok());
}

#[test]
fn dependencies_are_of_the_same_graph_and_named_once() {
    let mut drawing = Drawing::new("a b");
    let (graph, a) = (drawing.graph, drawing.node('a'));
    let twice = drawing.graphs.add(graph, &after(&[a, a]), empty());
    assert_eq!(twice, Err(CudaError::INVALID_VALUE));
    let (other, nodes) = draw(&mut drawing.graphs, "a");
    assert_eq!(drawing.graphs.add(graph, &after(&nodes), empty()), Err(CudaError::INVALID_VALUE));
    assert_eq!(
        drawing.graphs.add_edge(other, a, nodes[0], EdgeData::default()),
        Err(CudaError::INVALID_VALUE)
    );
    let stranger = NodeId(0);
    assert_eq!(drawing.graphs.add(graph, &after(&[stranger]), empty()), Err(CudaError::INVALID_VALUE));
}

#[test]
fn only_kernels_have_programmatic_edges() {
    let mut drawing = Drawing::new("aK bK c");
    let (graph, [a, b, c]) = (drawing.graph, ['a', 'b', 'c'].map(|letter| drawing.node(letter)));
    assert_eq!(drawing.graphs.add_edge(graph, a, b, PROGRAMMATIC), Ok(()));
    assert_eq!(drawing.graphs.add_edge(graph, a, c, PROGRAMMATIC), Err(CudaError::INVALID_VALUE));
    let other = Some(EdgeData::default());
    assert_eq!(drawing.graphs.remove_edge(graph, a, b, other), Err(CudaError::INVALID_VALUE));
    assert_eq!(drawing.graphs.remove_edge(graph, a, b, None), Ok(()));
}

#[test]
fn a_clone_knows_its_original_but_not_its_originals_original() {
    let mut drawing = Drawing::new("a b:a");
    let (graph, a) = (drawing.graph, drawing.node('a'));
    let clone = drawing.graphs.clone_graph(graph).expect("a graph");
    let second = drawing.graphs.clone_graph(clone).expect("a graph");
    let found = drawing.graphs.find_in_clone(a, clone).expect("in the clone");
    assert_eq!(drawing.graphs.graph_of(found), Ok(clone));
    assert_eq!(drawing.graphs.find_in_clone(a, second), Err(CudaError::INVALID_VALUE));
    assert_eq!(drawing.graphs.find_in_clone(a, graph), Err(CudaError::INVALID_VALUE));
    drawing.graphs.destroy_node(found).expect("a node");
    assert_eq!(drawing.graphs.find_in_clone(a, clone), Err(CudaError::INVALID_VALUE));
}

#[test]
fn an_embedded_graph_is_a_clone_that_belongs_to_its_node() {
    let mut drawing = Drawing::new("a");
    let (child, inner) = draw(&mut drawing.graphs, "a b:a");
    let payload = Work { kind: CHILD, value: 0 };
    let node = drawing.graphs.add_child(drawing.graph, &[], payload, child).expect("a child");
    let embedded = drawing.graphs.child(node).expect("a child graph node");
    assert_ne!(embedded, child);
    assert!(drawing.graphs.find_in_clone(inner[1], embedded).is_ok());
    assert_eq!(drawing.graphs.destroy(embedded), Err(CudaError::INVALID_VALUE));
    assert_eq!(drawing.graphs.is_embedded(embedded), Ok(true));
    drawing.graphs.add(embedded, &[], empty()).expect("a good node");
    assert_eq!(drawing.graphs.nodes(child).map(<[_]>::len), Ok(2));
    drawing.graphs.destroy_node(node).expect("a node");
    assert_eq!(drawing.graphs.nodes(embedded), Err(CudaError::INVALID_VALUE));
}

#[test]
fn a_moved_graph_belongs_to_its_node_and_never_to_itself() {
    let mut drawing = Drawing::new("a");
    let graph = drawing.graph;
    let payload = Work { kind: CHILD, value: 0 };
    let (child, _) = draw(&mut drawing.graphs, "a");
    let node = drawing.graphs.add_moved_child(graph, &[], payload, child).expect("a child");
    assert_eq!(drawing.graphs.child(node), Ok(child));
    let refused = Err(CudaError::INVALID_VALUE);
    assert_eq!(drawing.graphs.add_moved_child(graph, &[], payload, child), refused, "it has a node already");
    assert_eq!(drawing.graphs.add_moved_child(graph, &[], payload, graph), refused);
    assert_eq!(drawing.graphs.add_moved_child(child, &[], payload, graph), refused);
}

#[test]
fn a_graph_that_owns_memory_has_one_life() {
    let mut drawing = Drawing::new("aA b:a");
    let (graph, a) = (drawing.graph, drawing.node('a'));
    assert_eq!(drawing.graphs.clone_graph(graph), Err(CudaError::NOT_SUPPORTED));
    let other = drawing.graphs.create();
    let payload = Work { kind: CHILD, value: 0 };
    assert_eq!(drawing.graphs.add_child(other, &[], payload, graph), Err(CudaError::NOT_SUPPORTED));
    assert_eq!(drawing.graphs.destroy_node(a), Err(CudaError::NOT_SUPPORTED));
    assert_eq!(drawing.remove('a', 'b'), Err(CudaError::NOT_SUPPORTED));
}

#[test]
fn objects_are_handed_back_by_the_last_that_holds_them() {
    let mut drawing = Drawing::new("a");
    let (child, _) = draw(&mut drawing.graphs, "a");
    drawing.graphs.retain_object(child, 77, 2).expect("a graph");
    let payload = Work { kind: CHILD, value: 0 };
    drawing.graphs.add_child(drawing.graph, &[], payload, child).expect("a child");
    assert_eq!(drawing.graphs.objects(drawing.graph).expect("a graph").get(&77), Some(&2));
    drawing.graphs.release_object(child, 77, 1).expect("a graph");
    assert_eq!(drawing.graphs.destroy(child).expect("a graph").get(&77), Some(&1));
    assert_eq!(drawing.graphs.destroy(drawing.graph).expect("a graph").get(&77), Some(&2));
}

/// The list as text: what a place waits for, `-` in front of a place without work.
fn flat_text(graphs: &Graphs<Work>, graph: GraphId) -> String {
    let flat = graphs.snapshot(graph).expect("a graph").flatten().expect("no circle");
    let word = |node: &super::FlatNode<Work>| {
        let numbers: Vec<String> = node.after.iter().map(u32::to_string).collect();
        format!("{}{}", if node.payload.is_some() { "" } else { "-" }, numbers.join(","))
    };
    flat.nodes.iter().map(word).collect::<Vec<_>>().join(" | ")
}

#[test]
fn a_list_keeps_the_order_in_which_nodes_were_made_where_it_can() {
    let drawing = Drawing::new("a b:a c:a d:cb");
    assert_eq!(flat_text(&drawing.graphs, drawing.graph), " | 0 | 0 | 1,2");
    let mut drawing = Drawing::new("a b c");
    drawing.add('c', 'a').expect("no edge yet");
    // b, c, a
    assert_eq!(flat_text(&drawing.graphs, drawing.graph), " |  | 1");
}

#[test]
fn embedded_graphs_become_part_of_the_list() {
    let mut drawing = Drawing::new("a b");
    let (child, _) = draw(&mut drawing.graphs, "a b c:ab d:a");
    let payload = Work { kind: CHILD, value: 0 };
    let both = after(&[drawing.node('a'), drawing.node('b')]);
    let graph = drawing.graph;
    let node = drawing.graphs.add_child(graph, &both, payload, child).expect("a child");
    let last = drawing.graphs.add(graph, &after(&[node]), empty()).expect("a good node");
    assert_eq!(flat_text(&drawing.graphs, graph), " |  | -0,1 | 2 | 2 | 3,4 | 3 | -5,6 | 7");
    let flat = drawing.graphs.snapshot(graph).expect("a graph").flatten().expect("no circle");
    assert_eq!((flat.place(node), flat.place(last)), (Ok(7), Ok(8)));
    let inner = drawing.graphs.nodes(drawing.graphs.child(node).expect("a child")).expect("a graph")[2];
    assert_eq!(flat.place(inner), Ok(5));
    assert_eq!(flat.place(NodeId(1)).err(), Some(CudaError::INVALID_VALUE));
}

#[test]
fn an_empty_embedded_graph_passes_edges_on() {
    let mut drawing = Drawing::new("a");
    let child = drawing.graphs.create();
    let payload = Work { kind: CHILD, value: 0 };
    let behind_a = after(&[drawing.node('a')]);
    let node = drawing.graphs.add_child(drawing.graph, &behind_a, payload, child).expect("a child");
    drawing.graphs.add(drawing.graph, &after(&[node]), empty()).expect("a good node");
    assert_eq!(flat_text(&drawing.graphs, drawing.graph), " | -0 | 1");
}

/// Updates what `old` draws with `new`; the answer names the result and the nodes of `new` it is about.
fn update(old: &str, new: &str) -> String {
    let mut graphs = Graphs::default();
    let (old, _) = draw(&mut graphs, old);
    let (new, names) = draw(&mut graphs, new);
    let mut exec = graphs.snapshot(old).expect("a graph");
    let letter = |node: Option<NodeId>| {
        let place = node.and_then(|node| names.iter().position(|name| *name == node));
        place.map_or('-', |place| (b'a' + place as u8) as char)
    };
    match exec.update(&graphs.snapshot(new).expect("a graph")) {
        Ok(()) => "ok".to_owned(),
        Err(Mismatch { result, node, from }) => format!("{result:?} {}{}", letter(node), letter(from)),
    }
}

#[test]
fn an_update_names_where_graphs_differ_as_the_driver_does() {
    assert_eq!(update("aK bM:a", "aK bM:a"), "ok");
    assert_eq!(update("a b:a", "a"), "TopologyChanged --");
    assert_eq!(update("a", "a b:a"), "TopologyChanged --");
    assert_eq!(update("aK bM:a", "aK b:a"), "NodeTypeChanged b-");
    assert_eq!(update("a b", "a b:a"), "TopologyChanged --");
    assert_eq!(update("a b:a", "a b"), "TopologyChanged a-");
    assert_eq!(update("a b:a c:a", "a b:a c:b"), "TopologyChanged --");
    assert_eq!(update("a b:a c:b", "a b:a c:a"), "TopologyChanged b-");
    assert_eq!(update("aK bM", "aM bK"), "NodeTypeChanged b-");
    assert_eq!(update("a b:a c:a d:bc", "a b:a c:a d:cb"), "ok");
    assert_eq!(update("a b c:a d:b", "a b c:a d:a"), "TopologyChanged b-");
    assert_eq!(update("a b c:ab d:ab", "a b c:ab d:ba"), "TopologyChanged ca");
    assert_eq!(update("a b:a", "a bX:a"), "ParametersChanged b-");
}

#[test]
fn an_update_reaches_into_embedded_graphs() {
    let mut graphs: Graphs<Work> = Graphs::default();
    let payload = Work { kind: CHILD, value: 0 };
    let mut with_child = |value: i32| {
        let (graph, child) = (graphs.create(), graphs.create());
        graphs.add(child, &[], kernel(value)).expect("a good node");
        graphs.add_child(graph, &[], payload, child).expect("a child");
        graphs.snapshot(graph).expect("a graph")
    };
    let (mut exec, new) = (with_child(1), with_child(2));
    let name = exec.nodes[0].id;
    assert_eq!(exec.update(&new), Ok(()));
    let inner = exec.nodes[0].child.as_ref().expect("a child");
    assert_eq!((exec.nodes[0].id, inner.nodes[0].payload), (name, kernel(2)));
}

#[test]
fn a_drawing_has_a_cluster_for_each_graph() {
    let mut drawing = Drawing::new("a b:a c:a");
    let child = drawing.graphs.create();
    let payload = Work { kind: CHILD, value: 0 };
    let behind_b = after(&[drawing.node('b')]);
    drawing.graphs.add_child(drawing.graph, &behind_b, payload, child).expect("a child");
    let describe = |node: &super::dot::DotNode<'_, Work>| {
        format!("label=\"{}/{}{}\"", node.number, node.topological, node.child.as_deref().unwrap_or(""))
    };
    let text = drawing.graphs.dot(drawing.graph, true, &describe).expect("a graph");
    let expected = r#"digraph dot {
subgraph cluster_1 {
label="graph_1" graph[style="dashed"];
"graph_1_node_0"[label="0/3"];

"graph_1_node_1"[label="1/2"];

"graph_1_node_2"[label="2/1"];

"graph_1_node_3"[label="3/0graph_3"];

"graph_1_node_0" -> "graph_1_node_1" [headlabel=0];
"graph_1_node_0" -> "graph_1_node_2" [headlabel=0];
"graph_1_node_1" -> "graph_1_node_3" [headlabel=0];
}
subgraph cluster_3 {
label="graph_3" graph[style="dashed"];
}
}
"#;
    assert_eq!(text, expected);
}

#[derive(Clone, Debug)]
enum Step {
    Add(Vec<usize>),
    AddEdge(usize, usize),
    RemoveEdge(usize, usize),
    Destroy(usize),
    Clone,
    Embed,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop::collection::vec(0..32usize, 0..4).prop_map(Step::Add),
        3 => (0..32usize, 0..32usize).prop_map(|(from, to)| Step::AddEdge(from, to)),
        1 => (0..32usize, 0..32usize).prop_map(|(from, to)| Step::RemoveEdge(from, to)),
        1 => (0..32usize).prop_map(Step::Destroy),
        1 => Just(Step::Clone),
        1 => Just(Step::Embed),
    ]
}

proptest! {
    /// Whatever a program does, both ends of every edge know it, and a list that can be made respects every edge.
    #[test]
    fn graphs_stay_whole(steps in prop::collection::vec(step(), 0..60)) {
        let mut graphs: Graphs<Work> = Graphs::default();
        let mut graph = graphs.create();
        for step in steps {
            let nodes = graphs.nodes(graph).expect("a graph").to_vec();
            let pick = |number: usize| nodes.get(number % nodes.len().max(1)).copied().unwrap_or(NodeId(0));
            match step {
                Step::Add(deps) => {
                    let deps: Vec<NodeId> = deps.into_iter().map(pick).collect();
                    let _ = graphs.add(graph, &after(&deps), empty());
                }
                Step::AddEdge(from, to) => {
                    let _ = graphs.add_edge(graph, pick(from), pick(to), EdgeData::default());
                }
                Step::RemoveEdge(from, to) => {
                    let _ = graphs.remove_edge(graph, pick(from), pick(to), None);
                }
                Step::Destroy(node) => {
                    let _ = graphs.destroy_node(pick(node));
                }
                Step::Clone => graph = graphs.clone_graph(graph).expect("a graph"),
                Step::Embed if nodes.len() < 16 => {
                    let payload = Work { kind: CHILD, value: 0 };
                    graphs.add_child(graph, &[], payload, graph).expect("a child");
                }
                Step::Embed => {}
            }
            check(&graphs, graph)?;
        }
    }
}

fn check(graphs: &Graphs<Work>, graph: GraphId) -> Result<(), TestCaseError> {
    let nodes = graphs.nodes(graph).expect("a graph");
    for node in nodes {
        for edge in graphs.dependencies(*node).expect("a node") {
            let back = graphs.dependents(edge.node).expect("a node of the graph");
            prop_assert!(back.iter().any(|back| back.node == *node));
        }
    }
    let mut roots: Vec<NodeId> =
        nodes.iter().copied().filter(|node| graphs.dependencies(*node).expect("a node").is_empty()).collect();
    let mut listed = graphs.roots(graph).expect("a graph");
    roots.sort_unstable();
    listed.sort_unstable();
    prop_assert_eq!(roots, listed);

    let Ok(flat) = graphs.snapshot(graph).expect("a graph").flatten() else { return Ok(()) };
    for (place, node) in flat.nodes.iter().enumerate() {
        prop_assert!(node.after.iter().all(|before| (*before as usize) < place));
    }
    // Between two nodes with an edge there is a way in the list too.
    for (from, to, _) in graphs.edges(graph).expect("a graph") {
        let (from, to) = (flat.place(from).expect("in the list"), flat.place(to).expect("in the list"));
        prop_assert!(reaches(&flat, to, from), "{} does not lead to {}", from, to);
    }
    Ok(())
}

fn reaches(flat: &super::Flat<Work>, from: u32, target: u32) -> bool {
    let mut seen = vec![false; flat.nodes.len()];
    let mut stack = vec![from];
    while let Some(place) = stack.pop() {
        if place == target {
            return true;
        }
        if !std::mem::replace(&mut seen[place as usize], true) {
            stack.extend(&flat.nodes[place as usize].after);
        }
    }
    false
}
