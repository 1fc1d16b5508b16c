//! Modules ahead: what the last program like this one loaded is loaded before this one asks for it.
//!
//! ```text
//!   first load ─▶ is there a plan that begins with it? ─▶ the loop has nothing to do: load the next of the plan
//!   a load that the plan has, with the same name ─▶ the answer is here already
//!   the session ends ─▶ its loads are the plan for the next program with that first module
//! ```
//!
//! A program names its modules by counting, so the next one like it gives them the same names. Under these names they are loaded.
//! A program that loads something else under such a name has the first thing unloaded before: it never sees what was not asked for,
//! but for the memory that it takes. Sessions that are protected load nothing ahead, because their images must hold what
//! the program made and nothing else.

use cuda_driver::Descriptions;
use cuda_wire::{Command, ContextId, DriverCommand, ImageSource, JitOption, ModuleId, Received};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// More modules than this are not planned: no program loads so many before its first result.
const PLAN_MAX: usize = 512;

/// One load of a program.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Load {
    pub(crate) module: ModuleId,
    pub(crate) context: ContextId,
    pub(crate) hash: [u8; 32],
    pub(crate) options: Vec<JitOption>,
}

impl Load {
    /// The command that loads it from the worker's own images.
    pub(crate) fn command(&self) -> DriverCommand<'static> {
        let Self { module, context, hash, options } = self.clone();
        DriverCommand::ModuleLoad { module, context, hash, image: ImageSource::Known {}, options }
    }
}

/// What is planned, what is loaded, and what the program has loaded itself.
pub(crate) struct Ahead {
    plans: Arc<dyn Descriptions>,
    /// The program's loads so far, in order.
    seen: Vec<Load>,
    /// Still to be loaded.
    planned: VecDeque<Load>,
    /// Loaded and not asked for yet, with the answers.
    ready: HashMap<ModuleId, (Load, Vec<u8>)>,
}

/// What is there for a load of the program.
#[derive(Debug, PartialEq)]
pub(crate) enum Found {
    Nothing,
    /// It is loaded, and this is the answer.
    Ready(Vec<u8>),
    /// Something else is loaded under its name and must go first.
    InTheWay,
}

impl Ahead {
    pub(crate) fn new(plans: Arc<dyn Descriptions>) -> Self {
        Self { plans, seen: Vec::new(), planned: VecDeque::new(), ready: HashMap::new() }
    }

    /// The program loads a module.
    pub(crate) fn asked(&mut self, load: &Load) -> Found {
        self.planned.retain(|planned| planned.module != load.module);
        match self.ready.remove(&load.module) {
            Some((ready, answer)) if ready == *load => Found::Ready(answer),
            Some(_) => Found::InTheWay,
            None => Found::Nothing,
        }
    }

    /// The program's load is done. The first one says what the program is likely to load next.
    pub(crate) fn loaded(&mut self, load: Load) {
        if self.seen.is_empty()
            && let Some(plan) = self.plans.get(&key(&load)).and_then(|plan| decode(&plan))
        {
            self.planned = plan.into_iter().filter(|planned| planned.module != load.module).collect();
        }
        if self.seen.len() < PLAN_MAX {
            self.seen.push(load);
        }
    }

    pub(crate) fn has_next(&self) -> bool {
        !self.planned.is_empty()
    }

    /// The next module to load, if something is planned.
    pub(crate) fn next(&mut self) -> Option<Load> {
        self.planned.pop_front()
    }

    /// It was loaded, with this answer.
    pub(crate) fn prepared(&mut self, load: Load, answer: Vec<u8>) {
        self.ready.insert(load.module, (load, answer));
    }

    /// A context ends with everything in it. Plans for it are over.
    pub(crate) fn forget(&mut self, context: ContextId) {
        self.planned.retain(|planned| planned.context != context);
        self.ready.retain(|_, (load, _)| load.context != context);
    }

    /// The session is over: its loads are the plan for the next program like it.
    pub(crate) fn remember(&self) {
        if let [first, rest @ ..] = &self.seen[..]
            && !rest.is_empty()
        {
            let (key, plan) = (key(first), encode(rest));
            if self.plans.get(&key).as_ref() != Some(&plan) {
                self.plans.put(&key, &plan);
            }
        }
    }
}

/// Programs that begin with the same load, under the same name, are alike.
fn key(first: &Load) -> [u8; 32] {
    blake3::derive_key("dxpu 2026-11-17 plan of modules", &encode(std::slice::from_ref(first)))
}

/// The bodies of the commands, each behind its length.
fn encode(loads: &[Load]) -> Vec<u8> {
    let mut out = Vec::new();
    for load in loads {
        let mut body = Vec::new();
        Command::from(Received::Driver(load.command())).put_body(&mut body);
        out.extend((body.len() as u32).to_le_bytes());
        out.extend(body);
    }
    out
}

/// `None`: another version of dxpu wrote it.
fn decode(mut bytes: &[u8]) -> Option<Vec<Load>> {
    const MODULE_LOAD: u16 = 0x0020;
    let mut loads = Vec::new();
    while !bytes.is_empty() && loads.len() < PLAN_MAX {
        let (length, rest) = bytes.split_first_chunk()?;
        let (body, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let Ok(Received::Driver(DriverCommand::ModuleLoad { module, context, hash, options, .. })) =
            Received::decode(MODULE_LOAD, body)
        else {
            return None;
        };
        loads.push(Load { module, context, hash, options });
        bytes = rest;
    }
    Some(loads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Kept(Mutex<HashMap<[u8; 32], Vec<u8>>>);

    impl Descriptions for Kept {
        fn get(&self, key: &[u8; 32]) -> Option<Vec<u8>> {
            self.0.lock().unwrap().get(key).cloned()
        }

        fn put(&self, key: &[u8; 32], description: &[u8]) {
            self.0.lock().unwrap().insert(*key, description.to_vec());
        }
    }

    fn load(module: u32, image: u8) -> Load {
        let options = vec![JitOption { option: 7, value: image.into() }];
        Load { module: ModuleId(module), context: ContextId(0), hash: [image; 32], options }
    }

    /// A program's loads, each behind whatever the loop loads ahead. Says for how many the answer was there.
    fn run(kept: &Arc<Kept>, loads: &[Load]) -> usize {
        let mut ahead = Ahead::new(kept.clone());
        let mut ready = 0;
        for load in loads {
            match ahead.asked(load) {
                Found::Ready(answer) => {
                    assert_eq!(answer, load.hash, "the answer is that of the right image");
                    ready += 1;
                }
                Found::Nothing | Found::InTheWay => {}
            }
            ahead.loaded(load.clone());
            while let Some(next) = ahead.next() {
                let answer = next.hash.to_vec();
                ahead.prepared(next, answer);
            }
        }
        ahead.remember();
        ready
    }

    #[test]
    fn what_the_last_program_loaded_is_there_for_the_next() {
        let kept = Arc::default();
        let loads = [load(3, 1), load(4, 2), load(9, 3)];
        assert_eq!(run(&kept, &loads), 0);
        assert_eq!(run(&kept, &loads), 2, "all but the first, which says what program it is");
        assert_eq!(run(&kept, &[load(3, 8), load(4, 2)]), 0, "another program");
        assert_eq!(run(&kept, &loads[..1]), 0);
        assert_eq!(run(&kept, &loads), 2, "one that loads less does not spoil the plan");
    }

    #[test]
    fn something_else_under_the_name_of_a_planned_module_is_what_the_program_gets() {
        let kept = Arc::default();
        run(&kept, &[load(3, 1), load(4, 2), load(9, 3)]);
        let mut ahead = Ahead::new(kept);
        ahead.loaded(load(3, 1));
        let next = ahead.next().unwrap();
        ahead.prepared(next, vec![2]);
        assert_eq!(ahead.asked(&load(4, 7)), Found::InTheWay);
        assert_eq!(ahead.asked(&load(9, 9)), Found::Nothing, "it was not loaded yet, and is not any more");
        assert_eq!(ahead.next(), None);
    }

    #[test]
    fn a_context_that_ends_takes_what_was_loaded_with_it() {
        let kept = Arc::default();
        run(&kept, &[load(3, 1), load(4, 2), load(9, 3)]);
        let mut ahead = Ahead::new(kept);
        ahead.loaded(load(3, 1));
        let next = ahead.next().unwrap();
        ahead.prepared(next, vec![2]);
        ahead.forget(ContextId(0));
        assert_eq!((ahead.asked(&load(4, 2)), ahead.next()), (Found::Nothing, None));
    }

    #[test]
    fn a_plan_that_cannot_be_read_is_none() {
        assert_eq!(decode(&encode(&[load(1, 2), load(3, 4)])), Some(vec![load(1, 2), load(3, 4)]));
        assert_eq!(decode(&[1, 2, 3]), None);
        assert_eq!(decode(&[200, 0, 0, 0, 1]), None);
    }
}
