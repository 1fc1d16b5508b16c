//! A graph as text for a drawing (cuGraphDebugDotPrint), in the form the driver writes.
//!
//! Each graph is a cluster, embedded graphs behind those that embed them. What a node looks like is the caller's.

use super::{
    ids::{GraphId, NodeId},
    snapshot::Snapshot,
    store::{Graphs, Payload},
};
use cuda_abi::CuResult;
use std::fmt::Write;

/// What is known about a node when it is drawn.
#[derive(Debug)]
pub struct DotNode<'a, P> {
    /// Its name.
    pub id: NodeId,
    /// Its number in the graph, as made.
    pub number: usize,
    /// Its number counted from the ends of the graph.
    pub topological: usize,
    /// What it does.
    pub payload: &'a P,
    /// `graph_n` of the graph it embeds.
    pub child: Option<String>,
}

impl<P: Payload> Graphs<P> {
    /// The text; `describe` gives what stands in the brackets behind a node's name. With `verbose`, edges are
    /// labelled too.
    pub fn dot(
        &self,
        graph: GraphId,
        verbose: bool,
        describe: &dyn Fn(&DotNode<'_, P>) -> String,
    ) -> CuResult<String> {
        let mut text = String::from("digraph dot {\n");
        self.cluster(graph, verbose, describe, &mut text)?;
        text.push_str("}\n");
        Ok(text)
    }

    fn cluster(
        &self,
        graph: GraphId,
        verbose: bool,
        describe: &dyn Fn(&DotNode<'_, P>) -> String,
        text: &mut String,
    ) -> CuResult<()> {
        let name = graph_name(graph);
        let snapshot = self.snapshot(graph)?;
        let topological = snapshot.numbers_from_the_ends();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "subgraph cluster_{} {{\nlabel=\"{name}\" graph[style=\"dashed\"];",
            graph.serial()
        );
        for (number, node) in snapshot.nodes.iter().enumerate() {
            let child = self.node(node.id)?.child.map(graph_name);
            let topological = topological[number];
            let drawn = DotNode { id: node.id, number, topological, payload: &node.payload, child };
            let _ = writeln!(text, "\"{name}_node_{number}\"[{}];\n", describe(&drawn));
        }
        let numbers = |id: NodeId| snapshot.nodes.binary_search_by_key(&id, |node| node.id).unwrap_or(0);
        for (from, to, data) in self.edges(graph)? {
            let label = if verbose { format!(" [headlabel={}]", data.to_port) } else { String::new() };
            let (from, to) = (numbers(from), numbers(to));
            let _ = writeln!(text, "\"{name}_node_{from}\" -> \"{name}_node_{to}\"{label};");
        }
        text.push_str("}\n");
        for node in &snapshot.nodes {
            let known = self.node(node.id)?;
            for inner in known.child.iter().chain(&known.bodies) {
                self.cluster(*inner, verbose, describe, text)?;
            }
        }
        Ok(())
    }
}

/// How drawings name a graph.
pub fn graph_name(graph: GraphId) -> String {
    format!("graph_{}", graph.serial())
}

impl<P: Payload> Snapshot<P> {
    /// For each node its place in a walk from the exits against the edges. Nodes in a circle come last.
    fn numbers_from_the_ends(&self) -> Vec<usize> {
        let mut waiting: Vec<usize> = self.nodes.iter().map(|node| node.dependents).collect();
        let mut walk = self.exits();
        let mut visited = 0;
        while let Some(number) = walk.get(visited).copied() {
            visited += 1;
            for (before, _) in &self.nodes[number].before {
                waiting[*before] -= 1;
                if waiting[*before] == 0 {
                    walk.push(*before);
                }
            }
        }
        let mut places = vec![usize::MAX; self.nodes.len()];
        walk.iter().enumerate().for_each(|(place, number)| places[*number] = place);
        let in_circles = places.iter_mut().filter(|place| **place == usize::MAX);
        in_circles.enumerate().for_each(|(offset, place)| *place = visited + offset);
        places
    }
}
