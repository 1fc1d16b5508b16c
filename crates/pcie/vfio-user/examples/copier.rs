//! A small PCI device for judges: it copies guest memory and raises an interrupt.
//!
//!     copier SOCKET [--msix] [--late MILLISECONDS]
//!
//! ```text
//! BAR 0   0x00  source address      0x18  command: 1 copies, 2 only raises the interrupt
//!         0x08  target address      0x1c  status: 1 done, 2 a fault
//!         0x10  length in bytes     0x20  vector to raise
//!         0x24  accesses so far     0x28  scratch: what is written can be read back
//! BAR 2   a page of memory          BAR 4 (64 bits) the MSI-X table, with --msix
//! ```
//!
//! With `--late`, reads of BAR 0 are answered by another thread after that time.

use std::path::PathBuf;
use std::time::Duration;

use vfio_user::message::region;
use vfio_user::{AccessId, Answer, Bus, Device, IrqKind, Options, Server, Shape};

const VECTORS: u32 = 4;
const STATUS: usize = 0x1c;
const ACCESSES: usize = 0x24;

struct Copier {
    config: Vec<u8>,
    /// Which bits of configuration space the guest may change.
    writable: Vec<u8>,
    registers: Vec<u8>,
    page: Vec<u8>,
    msix: bool,
    late: Option<Duration>,
    bus: Option<Bus>,
}

impl Copier {
    fn new(msix: bool, late: Option<Duration>) -> Self {
        let (mut config, mut writable) = (vec![0; 4096], vec![0; 4096]);
        let mut set = |at: usize, value: &[u8], mask: &[u8]| {
            config[at..at + value.len()].copy_from_slice(value);
            writable[at..at + mask.len()].copy_from_slice(mask);
        };
        // A vendor and device number that QEMU keeps for tests, class "other".
        set(0x00, &[0x36, 0x1b, 0x0e, 0x10], &[]);
        set(0x04, &[0, 0, 0x10, 0], &[0x46, 0x05]);
        set(0x08, &[1, 0, 0, 0xff], &[]);
        set(0x10, &[0; 4], &0xffff_f000u32.to_le_bytes());
        set(0x18, &[0; 4], &0xffff_f000u32.to_le_bytes());
        set(0x34, &[0x40], &[]);
        set(0x3c, &[0xff], &[0xff]);
        if msix {
            set(0x20, &[0x04, 0, 0, 0], &0xffff_f000u32.to_le_bytes());
            set(0x24, &[0; 4], &[0xff; 4]);
            // MSI-X: four vectors, table at the start of BAR 4, pending bits in its second half.
            set(0x40, &[0x11, 0, (VECTORS - 1) as u8, 0, 4, 0, 0, 0, 4, 0x08, 0, 0], &[0, 0, 0, 0xc0]);
        } else {
            // MSI: 64-bit address, four vectors.
            set(
                0x40,
                &[0x05, 0, 0x84, 0],
                &[0, 0, 0x71, 0, 0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            );
        }
        Self { config, writable, registers: vec![0; 4096], page: vec![0; 4096], msix, late, bus: None }
    }

    fn register(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.registers[at..at + 8].try_into().expect("eight bytes"))
    }

    fn run(&mut self, command: u32) {
        let Some(bus) = &self.bus else { return };
        let mut status = 1u32;
        if command & 1 != 0 {
            let len = self.register(0x10).min(1 << 20) as usize;
            let mut data = vec![0; len];
            let copied = bus
                .memory
                .read(self.register(0x00), &mut data)
                .and_then(|()| bus.memory.write(self.register(0x08), &data));
            if let Err(fault) = copied {
                eprintln!("copier: {fault}");
                status = 2;
            }
        }
        let vector = self.register(0x20) as u32;
        bus.interrupts.raise(if self.msix { IrqKind::Msix } else { IrqKind::Msi }, vector);
        self.registers[STATUS..STATUS + 4].copy_from_slice(&status.to_le_bytes());
    }
}

impl Device for Copier {
    fn shape(&self) -> Shape {
        match self.msix {
            true => Shape::pci_express(&[4096, 0, 4096, 0, 4096], 0, VECTORS),
            false => Shape::pci_express(&[4096, 0, 4096], VECTORS, 0),
        }
    }

    fn attach(&mut self, bus: Bus) {
        self.bus = Some(bus);
    }

    fn read(&mut self, access: AccessId, region: u32, offset: u64, count: usize) -> Answer<Vec<u8>> {
        let range = offset as usize..offset as usize + count;
        let data = match region {
            region::CONFIG => self.config[range].to_vec(),
            2 => self.page[range].to_vec(),
            0 => {
                let accesses = self.register(ACCESSES) as u32 + 1;
                self.registers[ACCESSES..ACCESSES + 4].copy_from_slice(&accesses.to_le_bytes());
                self.registers[range].to_vec()
            }
            _ => vec![0; count],
        };
        match (self.late, &self.bus) {
            (Some(late), Some(bus)) if region == 0 => {
                let completions = bus.completions.clone();
                std::thread::spawn(move || {
                    std::thread::sleep(late);
                    completions.complete(access, data);
                });
                Answer::Later
            }
            _ => Answer::Now(data),
        }
    }

    fn write(&mut self, _: AccessId, region: u32, offset: u64, data: &[u8]) -> Answer<()> {
        let range = offset as usize..offset as usize + data.len();
        match region {
            region::CONFIG => {
                for (at, value) in range.zip(data) {
                    let mask = self.writable[at];
                    self.config[at] = self.config[at] & !mask | value & mask;
                }
            }
            2 => self.page[range].copy_from_slice(data),
            0 => {
                self.registers[range.clone()].copy_from_slice(data);
                if range.contains(&0x18) {
                    self.run(self.register(0x18) as u32);
                }
            }
            _ => {}
        }
        Answer::Now(())
    }

    fn reset(&mut self, _: AccessId) -> Answer<()> {
        let bus = self.bus.take();
        *self = Self { bus, ..Self::new(self.msix, self.late) };
        Answer::Now(())
    }

    fn detach(&mut self) {
        self.bus = None;
        self.reset(AccessId(0));
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(arguments.next().ok_or("usage: copier SOCKET [--msix] [--late MILLISECONDS]")?);
    let (mut msix, mut late) = (false, None);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--msix" => msix = true,
            "--late" => {
                let ms = arguments.next().ok_or("--late needs milliseconds")?.parse()?;
                late = Some(Duration::from_millis(ms));
            }
            other => return Err(format!("no option {other}").into()),
        }
    }
    let server = Server::bind(&path, Options::default())?;
    server.serve(&mut Copier::new(msix, late))?;
    Ok(())
}
