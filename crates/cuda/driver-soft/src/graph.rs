//! Executable graphs: nodes with edges, run as one place in a line.

use crate::{
    conditional::Handles,
    line::{Line, Place},
    op::OwnedOp,
    session::Session,
    sync::{Lock, lock, wait},
    work::Work,
};
use cuda_abi::{CuResult, CudaError};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar},
};

/// A node of an executable graph.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) op: OwnedOp,
    pub(crate) after: Vec<u32>,
    pub(crate) enabled: bool,
}

/// An executable graph.
pub(crate) struct Exec {
    pub(crate) context: Arc<crate::context::Context>,
    pub(crate) nodes: Vec<Node>,
    /// Of its conditional nodes.
    pub(crate) handles: Arc<Handles>,
    /// Its last launch; the next one waits for it, in whatever stream it is.
    pub(crate) last: Option<Place>,
}

/// The most threads that work on one launch of a graph.
const BRANCHES_MAX: usize = 8;

/// One launch of a graph.
pub(crate) struct GraphRun {
    works: Vec<Work>,
    /// The nodes that wait for each node.
    followers: Vec<Vec<u32>>,
    /// How many nodes each node waits for.
    waits: Vec<u32>,
    /// Its conditional nodes, of a whole graph.
    handles: Option<Arc<Handles>>,
}

struct Progress {
    waits: Vec<u32>,
    ready: Vec<u32>,
    left: usize,
    threads: usize,
    error: Option<CudaError>,
}

impl GraphRun {
    /// A launch of admitted works with these edges, each towards lower numbers.
    pub(crate) fn new(works: Vec<Work>, after: &[Vec<u32>]) -> Arc<Self> {
        let mut followers = vec![Vec::new(); works.len()];
        for (node, after) in after.iter().enumerate() {
            for &before in after {
                followers[before as usize].push(node as u32);
            }
        }
        let waits = after.iter().map(|after| after.len() as u32).collect();
        Arc::new(Self { works, followers, waits, handles: None })
    }

    /// The same for a whole graph.
    pub(crate) fn with_handles(self: Arc<Self>, handles: &Arc<Handles>) -> Arc<Self> {
        match Arc::try_unwrap(self) {
            Ok(run) => Arc::new(Self { handles: Some(Arc::clone(handles)), ..run }),
            Err(shared) => shared,
        }
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.works.iter().map(Work::held_bytes).sum()
    }

    /// Runs all nodes. Where several are ready, helpers take branches of their own.
    pub(crate) fn execute(&self, session: &Arc<Session>, line: &Arc<Line>) -> CuResult<()> {
        self.handles.iter().for_each(|handles| handles.begin());
        // Low numbers last, so that they are taken first.
        let ready =
            (0..self.works.len() as u32).rev().filter(|&node| self.waits[node as usize] == 0).collect();
        let progress = Lock::new(Progress {
            waits: self.waits.clone(),
            ready,
            left: self.works.len(),
            threads: 1,
            error: None,
        });
        let changed = Condvar::new();
        std::thread::scope(|scope| {
            let branch = Branch { run: self, session, line, progress: &progress, changed: &changed };
            branch.work(scope);
        });
        match lock(&progress).error {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// A thread that works on a launch.
#[derive(Clone, Copy)]
struct Branch<'r> {
    run: &'r GraphRun,
    session: &'r Arc<Session>,
    line: &'r Arc<Line>,
    progress: &'r Lock<Progress>,
    changed: &'r Condvar,
}

impl<'r> Branch<'r> {
    fn work<'scope>(self, scope: &'scope std::thread::Scope<'scope, 'r>)
    where
        'r: 'scope,
    {
        let mut progress = lock(self.progress);
        loop {
            if progress.left == 0 {
                return;
            }
            let Some(node) = progress.ready.pop() else {
                progress = wait(self.changed, progress);
                continue;
            };
            // Without a helper the branches run one after the other.
            if !progress.ready.is_empty()
                && progress.threads < BRANCHES_MAX
                && self.session.load.begin_branch()
            {
                let helper = std::thread::Builder::new().name("dxpu-graph".into());
                let help = move || {
                    self.work(scope);
                    self.session.load.end_branch();
                };
                match helper.spawn_scoped(scope, help) {
                    Ok(_) => progress.threads += 1,
                    Err(_) => self.session.load.end_branch(),
                }
            }
            drop(progress);
            let work = &self.run.works[node as usize];
            let outcome = catch_unwind(AssertUnwindSafe(|| work.execute(self.session, self.line)));
            // A panic must end the branch too, or the other branches would wait for ever.
            let outcome = outcome.unwrap_or(Err(CudaError::LAUNCH_FAILED));
            if let Err(error) = outcome {
                // From here on the context is dead and the other nodes do nothing.
                self.session.fail(&self.line.context, error);
            }
            progress = lock(self.progress);
            if let Err(error) = outcome {
                progress.error.get_or_insert(error);
            }
            progress.left -= 1;
            for &follower in &self.run.followers[node as usize] {
                let waits = &mut progress.waits[follower as usize];
                *waits -= 1;
                if *waits == 0 {
                    progress.ready.push(follower);
                }
            }
            self.changed.notify_all();
        }
    }
}
