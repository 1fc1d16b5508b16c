//! The contexts that are current to one thread: a stack, of which the top counts.
//!
//! The tests are the specification, and driver 580 is theirs: they repeat what it answers. Two of its answers are
//! not what one would guess. Setting null takes the top away and uncovers what is below. And a context that is
//! destroyed while it is not on top of this thread's stack stays where it is: it can become current again, and then
//! calls that need it fail with `CONTEXT_IS_DESTROYED`.

use cuda_abi::{CuResult, CudaError};

/// The stack of one thread. Contexts are whatever names them, such as their handles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextStack<C> {
    contexts: Vec<C>,
}

impl<C> ContextStack<C> {
    /// Nothing current.
    pub const fn new() -> Self {
        Self { contexts: Vec::new() }
    }
}

impl<C> Default for ContextStack<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Copy + PartialEq> ContextStack<C> {
    /// cuCtxGetCurrent: the top; none is no error.
    #[inline]
    pub fn current(&self) -> Option<C> {
        self.contexts.last().copied()
    }

    /// The top, for a call that needs one.
    #[inline]
    pub fn require(&self) -> CuResult<C> {
        self.current().ok_or(CudaError::INVALID_CONTEXT)
    }

    /// cuCtxPushCurrent: `context` becomes current above what was. The caller has refused null and unknown ones.
    pub fn push(&mut self, context: C) {
        self.contexts.push(context);
    }

    /// cuCtxPopCurrent: takes the top away and returns it.
    pub fn pop(&mut self) -> CuResult<C> {
        self.contexts.pop().ok_or(CudaError::INVALID_CONTEXT)
    }

    /// cuCtxSetCurrent: puts `context` in the place of the top, or takes the top away for null.
    pub fn set(&mut self, context: Option<C>) {
        self.contexts.pop();
        self.contexts.extend(context);
    }

    /// cuCtxDestroy on this thread: a context that is on top is taken away; below the top it stays.
    pub fn destroyed(&mut self, context: C) {
        if self.current() == Some(context) {
            self.contexts.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(contexts: &[char]) -> ContextStack<char> {
        ContextStack { contexts: contexts.to_vec() }
    }

    #[test]
    fn a_fresh_thread_has_no_context() {
        let mut fresh = ContextStack::<char>::new();
        assert_eq!(fresh.current(), None);
        assert_eq!(fresh.require(), Err(CudaError::INVALID_CONTEXT));
        assert_eq!(fresh.pop(), Err(CudaError::INVALID_CONTEXT));
    }

    #[test]
    fn contexts_come_back_in_reverse() {
        let mut stack = stack(&[]);
        stack.push('a');
        stack.push('b');
        stack.push('b');
        assert_eq!((stack.pop(), stack.pop(), stack.pop()), (Ok('b'), Ok('b'), Ok('a')));
        assert_eq!(stack.pop(), Err(CudaError::INVALID_CONTEXT));
    }

    #[test]
    fn setting_replaces_the_top_only() {
        let mut stack = stack(&['a', 'b']);
        stack.set(Some('c'));
        assert_eq!(stack.contexts, ['a', 'c']);
    }

    #[test]
    fn setting_on_an_empty_stack_pushes() {
        let mut stack = stack(&[]);
        stack.set(Some('a'));
        assert_eq!(stack.pop(), Ok('a'));
        assert_eq!(stack.current(), None);
    }

    #[test]
    fn setting_null_uncovers_what_is_below() {
        let mut stack = stack(&['a', 'b']);
        stack.set(None);
        assert_eq!(stack.current(), Some('a'));
        stack.set(None);
        assert_eq!(stack.current(), None);
        stack.set(None);
        assert_eq!(stack.current(), None);
    }

    #[test]
    fn destroying_the_top_takes_it_away_once() {
        let mut stack = stack(&['a', 'b', 'b']);
        stack.destroyed('b');
        assert_eq!(stack.contexts, ['a', 'b']);
    }

    #[test]
    fn destroying_below_the_top_leaves_it_to_be_met_later() {
        let mut stack = stack(&['a', 'b']);
        stack.destroyed('a');
        assert_eq!(stack.pop(), Ok('b'));
        assert_eq!(stack.current(), Some('a'));
    }
}
