"""cocotbext-pcie's root complex in front of our switch, which is another process."""

import os
import struct
import subprocess

import cocotb
from cocotb.triggers import Timer
from cocotbext.pcie.core import RootComplex
from cocotbext.pcie.core.port import SimPort
from cocotbext.pcie.core.tlp import Tlp
from cocotbext.pcie.core.utils import PcieId

UPSTREAM, DOWNSTREAM, DMA, NVME = 0x1B36D801, 0x1B36D802, 0x1B36D803, 0x1B360010


class Remote:
    """A port whose other side is a process: each packet is handed over, and what it causes comes back."""

    def __init__(self):
        self.process = subprocess.Popen([os.environ["DXPU_SWITCH"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.port = SimPort(fc_init=[[64, 1024, 64, 64, 0, 0]] * 8)
        self.port.parent = self
        self.port.max_link_speed, self.port.max_link_width = 3, 16
        self.port.rx_handler = self.receive
        self.seen = []

    async def receive(self, tlp):
        tlp.release_fc()
        packet = bytes(tlp.pack())
        self.process.stdin.write(struct.pack("<I", len(packet)) + packet)
        self.process.stdin.flush()
        while True:
            (length,) = struct.unpack("<I", self.process.stdout.read(4))
            if length == 0:
                return
            answer = Tlp.unpack(self.process.stdout.read(length))
            assert answer.check(), answer
            self.seen.append(answer)
            await self.port.send(answer)


async def bring_up():
    rc = RootComplex()
    rc.max_payload_size = 0x1
    remote = Remote()
    port = rc.make_port()
    port.downstream_port.max_link_speed, port.downstream_port.max_link_width = 3, 16
    port.connect(remote.port)
    await Timer(100, "ns")
    await rc.enumerate(timeout=10000)
    return rc, remote


def devices(tree):
    """All functions below a bus, as cocotb's root complex found them."""
    for device in tree.devices:
        yield device
        if getattr(device, "subordinate", None):
            yield from devices(device.subordinate)


def find(rc, identity):
    vendor, device = identity >> 16, identity & 0xFFFF
    return [d for d in devices(rc.host_bridge.bus) if (d.vendor_id, d.device_id) == (vendor, device)]


@cocotb.test()
async def it_enumerates_the_switch_and_both_endpoints(_):
    rc, _ = await bring_up()
    assert len(find(rc, UPSTREAM)) == 1
    assert len(find(rc, DOWNSTREAM)) == 3
    (dma,), (nvme,) = find(rc, DMA), find(rc, NVME)
    assert dma.pcie_id != nvme.pcie_id
    assert [bar.size for bar in dma.bar_window if bar] and [bar.size for bar in nvme.bar_window if bar]


@cocotb.test()
async def registers_and_device_memory_work(_):
    rc, _ = await bring_up()
    (dma,) = find(rc, DMA)
    await dma.enable_device()
    memory = dma.bar_window[2]
    data = bytes(range(256)) * 9
    await memory.write(0x1003, data)
    assert await memory.read(0x1003, len(data)) == data
    registers = dma.bar_window[0]
    await registers.write(0x10, struct.pack("<I", 77))
    assert await registers.read(0x10, 4) == struct.pack("<I", 77)
    await registers.write(0x11, b"\x01")
    assert await registers.read(0x10, 4) == struct.pack("<I", 77), "a byte is no register"


@cocotb.test()
async def engines_reach_the_hosts_memory_and_interrupt(_):
    rc, remote = await bring_up()
    (dma,) = find(rc, DMA)
    await dma.enable_device()
    await dma.set_master()
    await dma.alloc_irq_vectors(1, 2)
    host = rc.mem_pool.alloc_region(1 << 20)
    base = host.get_absolute_address(0)
    data = os.urandom(20_000)
    host[0x101:0x101 + len(data)] = data
    registers = dma.bar_window[0]

    async def copy(engine, address, offset, length, kind):
        at = engine * 0x100
        await registers.write(at, struct.pack("<QQI", address, offset, length))
        await registers.write(at + 0x1C, struct.pack("<I", engine))
        event = dma.msi_vectors[engine].event
        event.clear()
        await registers.write(at + 0x14, struct.pack("<I", kind))
        await event.wait()
        assert await registers.read(at + 0x18, 4) == b"\x02\0\0\0"

    await copy(0, base + 0x101, 0x55, len(data), 1)
    assert await dma.bar_window[2].read(0x55, len(data)) == data
    await copy(1, base + 0x80003, 0x55, len(data), 2)
    assert bytes(host[0x80003:0x80003 + len(data)]) == data
    sizes = {len(tlp.get_data()) for tlp in remote.seen if tlp.fmt_type.name.startswith("MEM_WRITE")}
    assert max(sizes) <= 256, "no payload above what the root complex allowed"


@cocotb.test()
async def an_nvme_command_is_carried_out(_):
    rc, _ = await bring_up()
    (nvme,) = find(rc, NVME)
    await nvme.enable_device()
    await nvme.set_master()
    await nvme.alloc_irq_vectors(1, 1)
    registers = nvme.bar_window[0]
    host = rc.mem_pool.alloc_region(1 << 16)
    base = host.get_absolute_address(0)
    assert await registers.read(8, 4) == struct.pack("<I", 0x10400)
    await registers.write(0x24, struct.pack("<I", 7 << 16 | 7))
    await registers.write(0x28, struct.pack("<QQ", base, base + 0x1000))
    await registers.write(0x14, struct.pack("<I", 0x460001))
    assert await registers.read(0x1C, 4) == b"\x01\0\0\0"
    # Identify the controller.
    entry = struct.pack("<BBHIQQQQIIIIII", 0x06, 0, 42, 0, 0, 0, base + 0x2000, 0, 1, 0, 0, 0, 0, 0)
    host[0:64] = entry
    event = nvme.msi_vectors[0].event
    event.clear()
    await registers.write(0x1000, struct.pack("<I", 1))
    await event.wait()
    completion = struct.unpack("<IIHHHH", bytes(host[0x1000:0x1010]))
    assert completion[2:] == (1, 0, 42, 1), completion
    assert bytes(host[0x2000 + 24:0x2000 + 42]) == b"dxpu NVMe endpoint"


@cocotb.test()
async def nobody_answers_where_nobody_is(_):
    rc, _ = await bring_up()
    # Functions and devices that do not exist, and an address between the windows.
    upstream = find(rc, UPSTREAM)[0]
    secondary = upstream.pcie_id.bus + 1
    for target in (PcieId(secondary, 9, 0), PcieId(secondary, 0, 3)):
        assert await rc.config_read(target, 0, 4, timeout=1000) == b"\xff\xff\xff\xff"
