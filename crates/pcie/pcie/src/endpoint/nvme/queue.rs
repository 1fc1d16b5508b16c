//! Queues in the guest's memory: fetching commands, writing completions.

use std::collections::VecDeque;

use super::command::{COMMAND_BYTES, COMPLETION_BYTES, completion_entry};
use super::{BlockStore, COMMANDS_MAX, Command, FETCH_MAX, Nvme, Status, Step};

/// A submission queue.
pub(super) struct SubmissionQueue {
    base: u64,
    entries: u32,
    head: u32,
    tail: u32,
    pub(super) completion: u16,
    is_fetching: bool,
    /// Commands fetched and not completed.
    pub(super) under_way: usize,
}

impl SubmissionQueue {
    pub(super) fn new(base: u64, entries: u32, completion: u16) -> Self {
        Self { base, entries, head: 0, tail: 0, completion, is_fetching: false, under_way: 0 }
    }
}

/// A completion queue.
pub(super) struct CompletionQueue {
    base: u64,
    entries: u32,
    head: u32,
    tail: u32,
    phase: bool,
    vector: Option<u16>,
    /// Completions that found the queue full.
    waiting: VecDeque<(Command, Status, u32)>,
}

impl CompletionQueue {
    pub(super) fn new(base: u64, entries: u32, vector: Option<u16>) -> Self {
        Self { base, entries, head: 0, tail: 0, phase: true, vector, waiting: VecDeque::new() }
    }

    fn is_full(&self) -> bool {
        (self.tail + 1) % self.entries == self.head
    }
}

impl<S: BlockStore> Nvme<S> {
    /// A submission doorbell.
    pub(super) fn on_tail(&mut self, queue: u16, tail: u32) {
        if let Some(submission) = self.submission.get_mut(&queue)
            && tail < submission.entries
        {
            submission.tail = tail;
            self.fetch(queue);
        }
    }

    /// A completion doorbell.
    pub(super) fn on_head(&mut self, queue: u16, head: u32) {
        let Some(completion) = self.completion.get_mut(&queue) else { return };
        if head >= completion.entries {
            return;
        }
        completion.head = head;
        while let Some(completion) = self.completion.get_mut(&queue)
            && !completion.is_full()
            && let Some((command, status, result)) = completion.waiting.pop_front()
        {
            self.post(queue, &command, status, result);
        }
    }

    /// Asks for the next entries, as many as there is room for.
    pub(super) fn fetch(&mut self, queue: u16) {
        let under_way: usize = self.submission.values().map(|queue| queue.under_way).sum();
        let Some(submission) = self.submission.get_mut(&queue) else { return };
        if submission.is_fetching || submission.head == submission.tail || under_way >= COMMANDS_MAX {
            return;
        }
        // Up to the tail, or to the end of the ring.
        let end = if submission.tail > submission.head { submission.tail } else { submission.entries };
        let room = (COMMANDS_MAX - under_way) as u32;
        let count = (end - submission.head).min(FETCH_MAX).min(room);
        submission.is_fetching = true;
        let address = submission.base + u64::from(submission.head) * COMMAND_BYTES as u64;
        self.ask(Step::Fetch { queue, count }, address, count as usize * COMMAND_BYTES);
    }

    /// Entries are here.
    pub(super) fn on_entries(&mut self, queue: u16, count: u32, entries: &[u8]) {
        let Some(submission) = self.submission.get_mut(&queue) else { return };
        submission.is_fetching = false;
        submission.head = (submission.head + count) % submission.entries;
        submission.under_way += count as usize;
        for entry in entries.as_chunks::<COMMAND_BYTES>().0 {
            let command = Command::decode(queue, entry);
            match queue {
                0 => self.admin(command),
                _ => self.io(command),
            }
        }
        self.fetch(queue);
    }

    /// Tells the driver how a command ended.
    pub(super) fn complete(&mut self, command: &Command, status: Status, result: u32) {
        let Some(submission) = self.submission.get_mut(&command.queue) else { return };
        submission.under_way = submission.under_way.saturating_sub(1);
        let queue = submission.completion;
        match self.completion.get_mut(&queue) {
            Some(completion) if completion.is_full() || !completion.waiting.is_empty() => {
                completion.waiting.push_back((*command, status, result));
            }
            Some(_) => self.post(queue, command, status, result),
            None => {}
        }
        // Room for another command: any queue may have some waiting.
        let queues: Vec<u16> = self.submission.keys().copied().collect();
        queues.into_iter().for_each(|queue| self.fetch(queue));
    }

    fn post(&mut self, queue: u16, command: &Command, status: Status, result: u32) {
        let head = self.submission.get(&command.queue).map_or(0, |submission| submission.head as u16);
        let Some(completion) = self.completion.get_mut(&queue) else { return };
        let entry = completion_entry(command, head, status, result, completion.phase);
        let address = completion.base + u64::from(completion.tail) * COMPLETION_BYTES as u64;
        completion.tail += 1;
        if completion.tail == completion.entries {
            (completion.tail, completion.phase) = (0, !completion.phase);
        }
        let vector = completion.vector;
        self.function.dma_write(address, &entry);
        if let Some(vector) = vector
            && self.registers.masked.checked_shr(vector.into()).unwrap_or(0) & 1 == 0
        {
            self.function.interrupt(vector);
        }
    }

    /// The driver listens again: tell it of what it has not looked at.
    pub(super) fn unmask(&mut self, bits: u32) {
        self.registers.masked &= !bits;
        let waiting = self.completion.values().filter(|queue| queue.head != queue.tail);
        let vectors: Vec<u16> = waiting
            .filter_map(|queue| queue.vector)
            .filter(|vector| bits.checked_shr((*vector).into()).unwrap_or(0) & 1 != 0)
            .collect();
        vectors.into_iter().for_each(|vector| self.function.interrupt(vector));
    }
}
