//! Variables declared `__managed__`: managed memory that the worker's driver has placed, with values from the start.
//!
//! Their pages may hold other things too: plain variables, and managed ones of another module. So an area of variables knows
//! which of its bytes are theirs, and no others are copied.

use super::{Area, Areas, IS_ANY, lock_areas, no_pages};
use crate::{
    paging::{Access, Pages},
    state::Context,
};
use cuda_abi::CuResult;
use cuda_client::managed::Table;
use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

const PAGE: u64 = 4096;

/// The bytes of an area that variables have, in order; `None` is all of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Held(Option<Vec<Range<u64>>>);

impl Held {
    /// The parts of a range that may be copied.
    pub(super) fn parts(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let Some(variables) = &self.0 else { return vec![range.clone()] };
        let parts = variables.iter().map(|held| held.start.max(range.start)..held.end.min(range.end));
        parts.filter(|part| part.start < part.end).collect()
    }

    /// Whether the area is one of variables.
    pub(super) fn is_variables(&self) -> bool {
        self.0.is_some()
    }

    fn add(&mut self, range: Range<u64>) {
        let variables = self.0.get_or_insert_default();
        let at = variables.partition_point(|held| held.start < range.start);
        variables.insert(at, range);
    }

    /// Says whether none is left.
    fn remove(&mut self, range: &Range<u64>) -> bool {
        let Some(variables) = &mut self.0 else { return false };
        variables.retain(|held| held != range);
        variables.is_empty()
    }
}

/// A module was loaded: its managed variables, by their addresses, get pages here.
pub(crate) fn add_variables(context: &Arc<Context>, variables: &[Range<u64>]) -> CuResult<()> {
    if variables.is_empty() {
        return Ok(());
    }
    crate::paging::start(&super::serve::RESOLVER).map_err(no_pages)?;
    let mut areas = lock_areas();
    variables.iter().try_for_each(|variable| areas.add_variable(context, variable))
}

/// A module goes.
pub(crate) fn remove_variables(variables: &[Range<u64>]) {
    if variables.is_empty() {
        return;
    }
    let mut areas = lock_areas();
    for variable in variables {
        for base in areas.met_by(variable.start, variable.end - variable.start) {
            let Some(area) = areas.by_base.get_mut(&base) else { continue };
            let part = area.part(variable.start, variable.end - variable.start);
            if area.held.remove(&part) {
                areas.end(base);
            }
        }
    }
    drop(areas);
    super::CHANGED.notify_all();
}

impl Areas {
    fn add_variable(&mut self, context: &Arc<Context>, variable: &Range<u64>) -> CuResult<()> {
        let end = variable.end.next_multiple_of(PAGE);
        let mut at = variable.start / PAGE * PAGE;
        while at < end {
            let base = match self.at(at).map(|area| area.base) {
                Some(base) => base,
                None => {
                    let next = self.by_base.range(at..end).next().map_or(end, |(base, _)| *base);
                    self.add_pages(context, at..next)?;
                    at
                }
            };
            // The device has the newest bytes of all its variables, and a touch fetches the new one's with the others'.
            self.lend(base, None)?;
            let Some(area) = self.by_base.get_mut(&base) else { break };
            let part = area.part(variable.start, variable.end - variable.start);
            area.held.add(part);
            at = area.base + area.bytes;
        }
        Ok(())
    }

    /// Closed pages for variables.
    fn add_pages(&mut self, context: &Arc<Context>, pages: Range<u64>) -> CuResult<()> {
        let (base, bytes) = (pages.start, pages.end - pages.start);
        let pages = Arc::new(Pages::create(base, bytes).map_err(no_pages)?);
        pages.set(&(0..bytes), Access::Closed).map_err(no_pages)?;
        let area = Area::new(context, base, pages, Table::on_device(bytes), bytes);
        let area = Area { held: Held(Some(Vec::new())), ..area };
        self.by_base.insert(base, area);
        IS_ANY.store(true, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Held;

    #[test]
    fn only_bytes_of_variables_are_copied() {
        let mut held = Held(Some(Vec::new()));
        held.add(256..260);
        held.add(0..8);
        held.add(512..4096);
        assert_eq!(held.parts(&(4..1024)), [4..8, 256..260, 512..1024]);
        assert_eq!(held.parts(&(8..256)), []);
        assert!(!held.remove(&(0..8)));
        assert!(!held.remove(&(512..4096)));
        assert_eq!(held.parts(&(0..4096)), std::slice::from_ref(&(256..260)));
        assert!(held.remove(&(256..260)));
        assert_eq!(Held::default().parts(&(4..1024)), std::slice::from_ref(&(4..1024)));
    }
}
