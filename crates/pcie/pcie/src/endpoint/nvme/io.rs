//! Commands of the I/O queues, and where their data lies.

use super::{BLOCK_BYTES, BlockStore, Command, Nvme, PAGE, Status, Step, TRANSFER_BYTES_MAX};

mod opcode {
    pub(super) const FLUSH: u8 = 0x00;
    pub(super) const WRITE: u8 = 0x01;
    pub(super) const READ: u8 = 0x02;
    pub(super) const WRITE_ZEROES: u8 = 0x08;
}

/// A read or write whose data is being found or fetched.
pub(super) struct Transfer {
    command: Command,
    block: u64,
    /// Pieces of guest memory, in the order of the data.
    segments: Vec<(u64, usize)>,
    /// Bytes whose place is not known yet.
    unplaced: usize,
    buffer: Vec<u8>,
    /// Pieces that are being fetched.
    gathering: usize,
    failed: bool,
    /// Pages of PRP list that led on to another. A page holds more entries than the largest command needs, so two
    /// are enough for every honest driver.
    hops: u8,
}

impl Transfer {
    /// Adds a piece; pieces that continue each other become one.
    fn place(&mut self, address: u64, bytes: usize) {
        self.unplaced -= bytes;
        match self.segments.last_mut() {
            Some((start, len)) if *start + *len as u64 == address => *len += bytes,
            _ => self.segments.push((address, bytes)),
        }
    }
}

impl<S: BlockStore> Nvme<S> {
    pub(super) fn io(&mut self, command: Command) {
        if command.namespace != 1 {
            return self.complete(&command, Status::InvalidNamespace, 0);
        }
        match command.opcode {
            opcode::FLUSH => {
                let status = self.store.flush().map_or(Status::WriteFault, |()| Status::Success);
                self.complete(&command, status, 0);
            }
            opcode::READ | opcode::WRITE => self.transfer(command),
            opcode::WRITE_ZEROES => self.write_zeroes(command),
            _ => self.complete(&command, Status::InvalidOpcode, 0),
        }
    }

    /// First block and bytes of a command, when the namespace has them.
    fn extent(&self, command: &Command) -> Result<(u64, usize), Status> {
        let block = u64::from(command.cdw(11)) << 32 | u64::from(command.cdw(10));
        let count = u64::from(command.cdw(12) & 0xffff) + 1;
        match block.checked_add(count) {
            Some(end) if end <= self.store.blocks() => Ok((block, count as usize * BLOCK_BYTES)),
            _ => Err(Status::LbaOutOfRange),
        }
    }

    fn write_zeroes(&mut self, command: Command) {
        let status = self.extent(&command).and_then(|(block, bytes)| {
            // In pieces: one command may name 32 MiB.
            let zeroes = vec![0; TRANSFER_BYTES_MAX];
            let blocks = |bytes: usize| (bytes / BLOCK_BYTES) as u64;
            let mut done = 0;
            while done < bytes {
                let here = (bytes - done).min(zeroes.len());
                self.store.write(block + blocks(done), &zeroes[..here]).map_err(|_| Status::WriteFault)?;
                done += here;
            }
            Ok(())
        });
        self.complete(&command, status.err().unwrap_or(Status::Success), 0);
    }

    fn transfer(&mut self, command: Command) {
        let (block, bytes) = match self.extent(&command) {
            Ok((_, bytes)) if bytes > TRANSFER_BYTES_MAX => {
                return self.complete(&command, Status::InvalidField, 0);
            }
            // Data is described by PRPs only; their addresses are of double words.
            Ok(_) if command.flags & 0xc0 != 0 => return self.complete(&command, Status::InvalidField, 0),
            Ok(_) if !command.prp1.is_multiple_of(4) => {
                return self.complete(&command, Status::PrpOffsetInvalid, 0);
            }
            Ok(extent) => extent,
            Err(status) => return self.complete(&command, status, 0),
        };
        let mut transfer = Transfer {
            command,
            block,
            segments: Vec::new(),
            unplaced: bytes,
            buffer: vec![0; bytes],
            gathering: 0,
            failed: false,
            hops: 0,
        };
        let first = ((PAGE - command.prp1 % PAGE) as usize).min(bytes);
        transfer.place(command.prp1, first);
        let io = self.new_name();
        if transfer.unplaced == 0 {
            self.transfers.insert(io, transfer);
            self.placed(io);
        } else if transfer.unplaced <= PAGE as usize {
            if !command.prp2.is_multiple_of(PAGE) {
                return self.complete(&command, Status::PrpOffsetInvalid, 0);
            }
            let rest = transfer.unplaced;
            transfer.place(command.prp2, rest);
            self.transfers.insert(io, transfer);
            self.placed(io);
        } else {
            if !command.prp2.is_multiple_of(8) {
                return self.complete(&command, Status::PrpOffsetInvalid, 0);
            }
            self.transfers.insert(io, transfer);
            self.ask_list(io, command.prp2);
        }
    }

    /// Asks for the part of a PRP list that lies in one page.
    fn ask_list(&mut self, io: u64, address: u64) {
        let Some(transfer) = self.transfers.get(&io) else { return };
        let needed = transfer.unplaced.div_ceil(PAGE as usize) * 8;
        let here = ((PAGE - address % PAGE) as usize).min(needed);
        self.ask(Step::PrpList { io }, address, here);
    }

    /// A part of a PRP list is here, or cannot be had.
    pub(super) fn on_prp_list(&mut self, io: u64, list: Option<Vec<u8>>) {
        let Some(transfer) = self.transfers.get_mut(&io) else { return };
        let Some(list) = list else { return self.end(io, Status::DataTransferError) };
        let entries = list.as_chunks::<8>().0;
        for (n, entry) in entries.iter().enumerate() {
            let address = u64::from_le_bytes(*entry);
            // The last entry of a page leads on when there is more than one page of data left.
            let leads_on = n + 1 == entries.len() && transfer.unplaced > PAGE as usize;
            if leads_on {
                transfer.hops += 1;
                if !address.is_multiple_of(8) || transfer.hops > 2 {
                    return self.end(io, Status::PrpOffsetInvalid);
                }
                return self.ask_list(io, address);
            }
            if !address.is_multiple_of(PAGE) {
                return self.end(io, Status::PrpOffsetInvalid);
            }
            let here = transfer.unplaced.min(PAGE as usize);
            transfer.place(address, here);
        }
        self.placed(io);
    }

    /// Every byte has its place: move the data.
    fn placed(&mut self, io: u64) {
        let Some(transfer) = self.transfers.get_mut(&io) else { return };
        if transfer.command.opcode == opcode::WRITE {
            transfer.gathering = transfer.segments.len();
            let segments = transfer.segments.clone();
            let mut at = 0;
            for (address, bytes) in segments {
                self.ask(Step::Gather { io, at }, address, bytes);
                at += bytes;
            }
            return;
        }
        if self.store.read(transfer.block, &mut transfer.buffer).is_err() {
            return self.end(io, Status::ReadError);
        }
        let mut at = 0;
        for (address, bytes) in &transfer.segments {
            self.function.dma_write(*address, &transfer.buffer[at..at + bytes]);
            at += bytes;
        }
        self.end(io, Status::Success);
    }

    /// A piece of what is to be written is here, or cannot be had.
    pub(super) fn on_gathered(&mut self, io: u64, at: usize, data: Option<Vec<u8>>) {
        let Some(transfer) = self.transfers.get_mut(&io) else { return };
        match data {
            Some(data) => transfer.buffer[at..at + data.len()].copy_from_slice(&data),
            None => transfer.failed = true,
        }
        transfer.gathering -= 1;
        if transfer.gathering > 0 {
            return;
        }
        let status = match transfer.failed {
            true => Status::DataTransferError,
            false => match self.store.write(transfer.block, &transfer.buffer) {
                Ok(()) => Status::Success,
                Err(_) => Status::WriteFault,
            },
        };
        self.end(io, status);
    }

    fn end(&mut self, io: u64, status: Status) {
        if let Some(transfer) = self.transfers.remove(&io) {
            self.complete(&transfer.command, status, 0);
        }
    }
}
