//! A device that remembers, for the tests of this folder, and a server around it.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this module")]

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vfio_user::message::region;
use vfio_user::{AccessId, Answer, Bus, Device, Options, Server, Shape, Stop};

pub const BAR_BYTES: u64 = 8192;
/// Reads of this page of BAR 0 are answered when the test says so, or never.
pub const LATE_PAGE: u64 = 4096;

#[derive(Default)]
pub struct Seen {
    pub bus: Option<Bus>,
    pub late: Vec<AccessId>,
    pub abandoned: Vec<AccessId>,
    pub writes: Vec<(u32, u64, Vec<u8>)>,
    pub resets: usize,
    pub detached: usize,
    pub interrupts_changed: Vec<u32>,
}

pub struct Remembering {
    pub seen: Arc<Mutex<Seen>>,
    config: Vec<u8>,
    bar: Vec<u8>,
}

impl Remembering {
    pub fn new() -> Self {
        let config = (0..4096).map(|n| (n % 251) as u8).collect();
        Self { seen: Arc::default(), config, bar: vec![0; BAR_BYTES as usize] }
    }
}

impl Device for Remembering {
    fn shape(&self) -> Shape {
        Shape::pci_express(&[BAR_BYTES], 4, 0)
    }
    fn attach(&mut self, bus: Bus) {
        self.seen.lock().unwrap().bus = Some(bus);
    }
    fn read(&mut self, access: AccessId, region: u32, offset: u64, count: usize) -> Answer<Vec<u8>> {
        let range = offset as usize..offset as usize + count;
        match region {
            region::CONFIG => Answer::Now(self.config[range].to_vec()),
            _ if offset >= LATE_PAGE => {
                self.seen.lock().unwrap().late.push(access);
                Answer::Later
            }
            _ => Answer::Now(self.bar[range].to_vec()),
        }
    }
    fn write(&mut self, _: AccessId, region: u32, offset: u64, data: &[u8]) -> Answer<()> {
        let place = if region == region::CONFIG { &mut self.config } else { &mut self.bar };
        place[offset as usize..offset as usize + data.len()].copy_from_slice(data);
        self.seen.lock().unwrap().writes.push((region, offset, data.to_vec()));
        Answer::Now(())
    }
    fn reset(&mut self, _: AccessId) -> Answer<()> {
        self.seen.lock().unwrap().resets += 1;
        Answer::Now(())
    }
    fn interrupts_changed(&mut self, index: u32) {
        self.seen.lock().unwrap().interrupts_changed.push(index);
    }
    fn abandoned(&mut self, access: AccessId) {
        self.seen.lock().unwrap().abandoned.push(access);
    }
    fn detach(&mut self) {
        let mut seen = self.seen.lock().unwrap();
        seen.detached += 1;
        seen.bus = None;
    }
}

/// A server in a thread, in a folder of its own.
pub struct Slot {
    pub path: PathBuf,
    pub seen: Arc<Mutex<Seen>>,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Slot {
    pub fn new(completion_timeout: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slot");
        let server = Server::bind(&path, Options { completion_timeout }).unwrap();
        let stop = server.stop_handle();
        let mut device = Remembering::new();
        let seen = device.seen.clone();
        let thread = Some(std::thread::spawn(move || server.serve(&mut device).unwrap()));
        Self { path, seen, stop, thread, _folder: folder }
    }

    pub fn bus(&self) -> Bus {
        self.seen.lock().unwrap().bus.clone().expect("somebody is connected")
    }

    /// Waits until what is seen fits, or fails the test.
    pub fn until(&self, what: &str, fits: impl Fn(&Seen) -> bool) {
        for _ in 0..500 {
            if fits(&self.seen.lock().unwrap()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("never happened: {what}");
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.stop.stop();
        let ended = self.thread.take().expect("dropped once").join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

/// Guest memory as QEMU makes it.
pub fn guest_memory(len: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, len).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    fd
}
