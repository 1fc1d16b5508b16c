//! The groups of channels of a process, and the slice that they should have.

use super::call::{Event, Name};

/// Asks for a group's slice, or sets it: through this descriptor, this group, this slice if it is to be set. The answer is the slice
/// that the kernel names.
pub(super) type Ask = fn(fd: i32, name: Name, set_us: Option<u64>) -> Option<u64>;

#[derive(Debug)]
struct Group {
    fd: i32,
    name: Name,
    /// What it had before we changed it.
    first_us: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Groups {
    all: Vec<Group>,
    wanted_us: Option<u64>,
}

impl Groups {
    pub(super) const fn new() -> Self {
        Self { all: Vec::new(), wanted_us: None }
    }

    /// The kernel has answered a call through this descriptor. A group that is new gets the slice of the others.
    pub(super) fn note(&mut self, fd: i32, event: Event, ask: Ask) {
        match event {
            Event::Born(name) => {
                let mut group = Group { fd, name, first_us: None };
                if let Some(wanted_us) = self.wanted_us {
                    group.order(wanted_us, ask);
                }
                self.all.push(group);
            }
            Event::Gone(name) => self.all.retain(|group| group.name != name),
        }
    }

    /// Gives all groups, and those to come, this slice; `None`: the one that each had at first. Returns how many have it.
    pub(super) fn set(&mut self, wanted_us: Option<u64>, ask: Ask) -> usize {
        self.wanted_us = wanted_us;
        let order = |group: &mut Group| match wanted_us.or(group.first_us) {
            Some(us) => group.order(us, ask),
            None => true,
        };
        self.all.iter_mut().map(order).filter(|done| *done).count()
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }
}

impl Group {
    /// Whether the kernel took it. A group whose first slice is not known is left alone: it could not be given back.
    fn order(&mut self, us: u64, ask: Ask) -> bool {
        self.first_us = self.first_us.or_else(|| ask(self.fd, self.name, None));
        self.first_us.is_some() && ask(self.fd, self.name, Some(us)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    thread_local! {
        /// Slices of groups, as a kernel would keep them: name, slice.
        static KERNEL: RefCell<Vec<(Name, u64)>> = const { RefCell::new(Vec::new()) };
    }

    fn kernel(_fd: i32, name: Name, set_us: Option<u64>) -> Option<u64> {
        KERNEL.with_borrow_mut(|groups| {
            let group = groups.iter_mut().find(|group| group.0 == name)?;
            group.1 = set_us.unwrap_or(group.1);
            Some(group.1)
        })
    }

    fn name(object: u32) -> Name {
        Name { client: 1, object }
    }

    fn slices() -> Vec<u64> {
        KERNEL.with_borrow(|groups| groups.iter().map(|group| group.1).collect())
    }

    #[test]
    fn groups_of_before_and_after_have_the_slice_until_it_is_taken_back() {
        KERNEL.set(vec![(name(1), 1024), (name(2), 2048)]);
        let mut groups = Groups::new();
        groups.note(3, Event::Born(name(1)), kernel);
        assert_eq!(slices(), [1024, 2048], "nothing was ordered yet");
        assert_eq!(groups.set(Some(1), kernel), 1);
        groups.note(3, Event::Born(name(2)), kernel);
        assert_eq!((slices(), groups.count()), (vec![1, 1], 2));
        assert_eq!(groups.set(Some(5), kernel), 2);
        assert_eq!(groups.set(None, kernel), 2);
        assert_eq!(slices(), [1024, 2048], "each has its own again");
    }

    #[test]
    fn a_group_that_is_gone_is_told_nothing() {
        KERNEL.set(vec![(name(1), 1024)]);
        let mut groups = Groups::new();
        groups.note(3, Event::Born(name(1)), kernel);
        groups.note(3, Event::Gone(name(4)), kernel);
        assert_eq!(groups.count(), 1);
        groups.note(3, Event::Gone(name(1)), kernel);
        assert_eq!((groups.count(), groups.set(Some(1), kernel)), (0, 0));
        assert_eq!(slices(), [1024]);
    }

    #[test]
    fn a_group_that_the_kernel_does_not_know_does_not_count() {
        KERNEL.set(vec![(name(1), 1024)]);
        let mut groups = Groups::new();
        groups.note(3, Event::Born(name(1)), kernel);
        groups.note(3, Event::Born(name(2)), kernel);
        assert_eq!(groups.set(Some(1), kernel), 1);
    }
}
