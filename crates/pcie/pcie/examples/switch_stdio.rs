//! A switch with a copying device and an NVMe device, for a root complex from another project.
//!
//! Frames on standard input and output: a length of four bytes (little-endian), then a packet of so many bytes. Every
//! packet that comes in is answered by the packets it causes and an empty frame.

use std::io::{Read, Write};

use pcie::endpoint::dma::{DmaDevice, DmaOptions};
use pcie::endpoint::nvme::{BLOCK_BYTES, BlockStore, Nvme, NvmeOptions, StoreError};
use pcie::tables::{EntryId, Epoch, NodeId, PathId, SlotId};
use pcie::{BoxEndpoints, Switch, SwitchOptions, SwitchOutput, Time, TlpBuf};
use tlp::{TLP_BYTES_MAX, Tlp};

const HOST: NodeId = NodeId(1);
const BOX: NodeId = NodeId(2);

/// A megabyte of blocks in memory.
struct Memory(Vec<u8>);

impl BlockStore for Memory {
    fn blocks(&self) -> u64 {
        (self.0.len() / BLOCK_BYTES) as u64
    }
    fn read(&mut self, block: u64, into: &mut [u8]) -> Result<(), StoreError> {
        let at = block as usize * BLOCK_BYTES;
        into.copy_from_slice(&self.0[at..at + into.len()]);
        Ok(())
    }
    fn write(&mut self, block: u64, from: &[u8]) -> Result<(), StoreError> {
        let at = block as usize * BLOCK_BYTES;
        self.0[at..at + from.len()].copy_from_slice(from);
        Ok(())
    }
    fn flush(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut switch = Switch::new(SwitchOptions { slots: 3, ..SwitchOptions::default() });
    let mut boxes = BoxEndpoints::new(3);
    let dma = DmaDevice::new(DmaOptions { memory_bytes: 1 << 20, ..DmaOptions::default() });
    boxes.insert(SlotId(0), Box::new(dma))?;
    let disk = (0..1 << 20).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    boxes.insert(SlotId(2), Box::new(Nvme::new(Memory(disk), NvmeOptions::default())))?;
    for slot in [0, 2] {
        boxes.pair(SlotId(slot), HOST, PathId(0), Epoch(1))?;
        switch.plug(EntryId(slot), BOX, SlotId(slot), PathId(0), Epoch(1))?;
    }
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut bytes = vec![0; TLP_BYTES_MAX];
    loop {
        let mut length = [0; 4];
        if input.read_exact(&mut length).is_err() {
            return Ok(());
        }
        let frame = bytes.get_mut(..u32::from_le_bytes(length) as usize).ok_or("a frame too long")?;
        input.read_exact(frame)?;
        let tlp = Tlp::decode(frame)?;
        let packet = TlpBuf { header: tlp.header, payload: tlp.payload.to_vec() };
        switch.receive_from_host(packet, Time::ZERO);
        for packet in settle(&mut switch, &mut boxes) {
            let mut frame = vec![0; packet.as_tlp().encoded_bytes()];
            let length = packet.as_tlp().encode(&mut frame)?;
            output.write_all(&(length as u32).to_le_bytes())?;
            output.write_all(&frame)?;
        }
        output.write_all(&[0; 4])?;
        output.flush()?;
    }
}

/// Moves packets between the proxies until nothing moves. Gives what goes up.
fn settle(switch: &mut Switch, boxes: &mut BoxEndpoints) -> Vec<TlpBuf> {
    let mut up = Vec::new();
    loop {
        let mut moved = false;
        while let Some(output) = switch.next_output() {
            moved = true;
            match output {
                SwitchOutput::Up(packet) => up.push(packet),
                SwitchOutput::Down { route, packet, .. } => {
                    boxes.receive(HOST, route.slot, route.epoch, packet, Time::ZERO);
                }
                SwitchOutput::Reset(entry) => boxes.reset(SlotId(entry.0)),
            }
        }
        while let Some(out) = boxes.transmit(Time::ZERO) {
            moved = true;
            switch.receive_from_network(BOX, out.slot, out.epoch, out.packet, Time::ZERO);
        }
        if !moved {
            return up;
        }
    }
}
