//! Commands of the admin queue.

use super::queue::{CompletionQueue, SubmissionQueue};
use super::{BlockStore, Command, Nvme, PAGE, QUEUE_ENTRIES_MAX, QUEUES_MAX, Status, identify};

/// Asynchronous event requests kept.
pub(super) const EVENT_REQUESTS_MAX: usize = 4;
/// Vectors a completion queue may name: those of MSI.
const VECTORS: u16 = 32;

mod opcode {
    pub(super) const DELETE_SUBMISSION: u8 = 0x00;
    pub(super) const CREATE_SUBMISSION: u8 = 0x01;
    pub(super) const GET_LOG_PAGE: u8 = 0x02;
    pub(super) const DELETE_COMPLETION: u8 = 0x04;
    pub(super) const CREATE_COMPLETION: u8 = 0x05;
    pub(super) const IDENTIFY: u8 = 0x06;
    pub(super) const ABORT: u8 = 0x08;
    pub(super) const SET_FEATURES: u8 = 0x09;
    pub(super) const GET_FEATURES: u8 = 0x0a;
    pub(super) const ASYNC_EVENT: u8 = 0x0c;
}

const FEATURE_QUEUES: u8 = 0x07;
const FEATURE_WRITE_CACHE: u8 = 0x06;

/// A result, or why there is none.
type Outcome = Result<u32, Status>;

impl<S: BlockStore> Nvme<S> {
    pub(super) fn admin(&mut self, command: Command) {
        let outcome = match command.opcode {
            opcode::CREATE_COMPLETION => self.create_completion(&command),
            opcode::CREATE_SUBMISSION => self.create_submission(&command),
            opcode::DELETE_COMPLETION => self.delete_completion(&command),
            opcode::DELETE_SUBMISSION => self.delete_submission(&command),
            opcode::IDENTIFY => self.identify(&command),
            opcode::GET_LOG_PAGE => self.log_page(&command),
            opcode::SET_FEATURES => self.set_feature(&command),
            opcode::GET_FEATURES => self.get_feature(&command),
            // Commands end soon enough by themselves; bit 0 says "not aborted".
            opcode::ABORT => Ok(1),
            opcode::ASYNC_EVENT if self.event_requests.len() < EVENT_REQUESTS_MAX => {
                self.event_requests.push(command);
                // It waits for an event and is no command under way any longer.
                if let Some(queue) = self.submission.get_mut(&0) {
                    queue.under_way = queue.under_way.saturating_sub(1);
                }
                return;
            }
            opcode::ASYNC_EVENT => Err(Status::EventRequestLimit),
            _ => Err(Status::InvalidOpcode),
        };
        match outcome {
            Ok(result) => self.complete(&command, Status::Success, result),
            Err(status) => self.complete(&command, status, 0),
        }
    }

    /// Identifier, entries and address that both kinds of queue are created with.
    fn new_queue(&self, command: &Command) -> Result<(u16, u32), Status> {
        let (id, entries) = (command.cdw(10) as u16, (command.cdw(10) >> 16) + 1);
        if id == 0 || id > QUEUES_MAX {
            return Err(Status::InvalidQueueId);
        }
        if !(2..=QUEUE_ENTRIES_MAX).contains(&entries) {
            return Err(Status::InvalidQueueSize);
        }
        // Queues are contiguous here (CAP.CQR), and pages.
        if command.cdw(11) & 1 == 0 {
            return Err(Status::InvalidField);
        }
        if !command.prp1.is_multiple_of(PAGE) {
            return Err(Status::PrpOffsetInvalid);
        }
        Ok((id, entries))
    }

    fn create_completion(&mut self, command: &Command) -> Outcome {
        let (id, entries) = self.new_queue(command)?;
        if self.completion.contains_key(&id) {
            return Err(Status::InvalidQueueId);
        }
        let vector = (command.cdw(11) >> 16) as u16;
        if vector >= VECTORS {
            return Err(Status::InvalidInterruptVector);
        }
        let vector = (command.cdw(11) & 2 != 0).then_some(vector);
        self.completion.insert(id, CompletionQueue::new(command.prp1, entries, vector));
        Ok(0)
    }

    fn create_submission(&mut self, command: &Command) -> Outcome {
        let (id, entries) = self.new_queue(command)?;
        if self.submission.contains_key(&id) {
            return Err(Status::InvalidQueueId);
        }
        let completion = (command.cdw(11) >> 16) as u16;
        if completion == 0 || !self.completion.contains_key(&completion) {
            return Err(Status::CompletionQueueInvalid);
        }
        self.submission.insert(id, SubmissionQueue::new(command.prp1, entries, completion));
        Ok(0)
    }

    fn delete_submission(&mut self, command: &Command) -> Outcome {
        let id = command.cdw(10) as u16;
        match id {
            0 => Err(Status::InvalidQueueId),
            _ => self.submission.remove(&id).map(|_| 0).ok_or(Status::InvalidQueueId),
        }
    }

    fn delete_completion(&mut self, command: &Command) -> Outcome {
        let id = command.cdw(10) as u16;
        if self.submission.values().any(|submission| submission.completion == id) && id != 0 {
            return Err(Status::InvalidQueueDeletion);
        }
        match id {
            0 => Err(Status::InvalidQueueId),
            _ => self.completion.remove(&id).map(|_| 0).ok_or(Status::InvalidQueueId),
        }
    }

    fn identify(&mut self, command: &Command) -> Outcome {
        let page = match command.cdw(10) as u8 {
            0x00 => match command.namespace {
                1 | u32::MAX => identify::namespace(self.store.blocks()),
                2.. => [0; 4096],
                0 => return Err(Status::InvalidNamespace),
            },
            0x01 => identify::controller(&self.serial),
            0x02 => identify::active_namespaces(command.namespace),
            0x03 if command.namespace == 1 => identify::descriptors(&self.serial),
            0x03 => return Err(Status::InvalidNamespace),
            _ => return Err(Status::InvalidField),
        };
        self.give(command, &page)
    }

    fn log_page(&mut self, command: &Command) -> Outcome {
        let dws = (u64::from(command.cdw(11)) & 0xffff) << 16 | u64::from(command.cdw(10) >> 16);
        let bytes = ((dws + 1) * 4) as usize;
        let offset = u64::from(command.cdw(13)) << 32 | u64::from(command.cdw(12));
        let page: Vec<u8> = match command.cdw(10) as u8 {
            // No error so far.
            0x01 => vec![0; 64],
            0x02 => identify::health().to_vec(),
            0x03 => identify::firmware_slots().to_vec(),
            _ => return Err(Status::InvalidLogPage),
        };
        if bytes > 2 * PAGE as usize || offset > page.len() as u64 {
            return Err(Status::InvalidField);
        }
        let mut data = page[offset as usize..].to_vec();
        data.resize(bytes, 0);
        self.give(command, &data)
    }

    /// Writes an answer of up to two pages to where the command says.
    fn give(&mut self, command: &Command, data: &[u8]) -> Outcome {
        if command.flags & 0xc0 != 0 {
            return Err(Status::InvalidField);
        }
        let first = ((PAGE - command.prp1 % PAGE) as usize).min(data.len());
        if data.len() > first && !command.prp2.is_multiple_of(PAGE) {
            return Err(Status::PrpOffsetInvalid);
        }
        if data.len() - first > PAGE as usize {
            return Err(Status::InvalidField);
        }
        self.function.dma_write(command.prp1, &data[..first]);
        self.function.dma_write(command.prp2, &data[first..]);
        Ok(0)
    }

    fn set_feature(&mut self, command: &Command) -> Outcome {
        let (feature, value) = (command.cdw(10) as u8, command.cdw(11));
        match feature {
            FEATURE_QUEUES => {
                let most = u32::from(QUEUES_MAX - 1);
                let (submission, completion) = ((value & 0xffff).min(most), (value >> 16).min(most));
                let granted = completion << 16 | submission;
                self.features.insert(feature, granted);
                Ok(granted)
            }
            0x01..=0x0b => {
                self.features.insert(feature, value);
                Ok(0)
            }
            _ => Err(Status::InvalidField),
        }
    }

    fn get_feature(&mut self, command: &Command) -> Outcome {
        let feature = command.cdw(10) as u8;
        let default = match feature {
            FEATURE_QUEUES => u32::from(QUEUES_MAX - 1) << 16 | u32::from(QUEUES_MAX - 1),
            FEATURE_WRITE_CACHE => 1,
            0x01..=0x0b => 0,
            _ => return Err(Status::InvalidField),
        };
        Ok(self.features.get(&feature).copied().unwrap_or(default))
    }
}
