"""QEMU drives a device behind our vfio-user server: configuration space, BARs, DMA and interrupts, without a guest."""

import os
import pathlib
import subprocess

import pytest

from qemu import Qtest, wait_for

COPIER = pathlib.Path(os.environ["DXPU_PCIE_EXAMPLES"]) / "copier"
PORT_BUS = 1
BAR0, BAR2, BAR4 = Qtest.WINDOW, Qtest.WINDOW + 0x1000, Qtest.WINDOW + 0x2000


@pytest.fixture
def serve(tmp_path):
    servers = []

    def start(*options, name="slot"):
        path = tmp_path / name
        servers.append(subprocess.Popen([COPIER, path, *options]))
        wait_for("the server's socket", path.exists)
        return {"driver": "vfio-user-pci", "id": name, "bus": "rp1", "socket": {"type": "unix", "path": str(path)}}

    yield start
    for server in servers:
        server.kill()
        server.wait()


def bring_up(machine):
    machine.bring_up_port()
    assert machine.cfg_read(PORT_BUS, 0, 0) == 0x100E_1B36
    machine.cfg_write(PORT_BUS, 0, 0x10, BAR0)
    machine.cfg_write(PORT_BUS, 0, 0x18, BAR2)
    machine.cfg_write(PORT_BUS, 0, 0x04, 0x0006, 2)


def copy(machine, source, target, length, command=1, vector=0):
    machine.write(BAR0 + 0x00, 8, source)
    machine.write(BAR0 + 0x08, 8, target)
    machine.write(BAR0 + 0x10, 8, length)
    machine.write(BAR0 + 0x20, 4, vector)
    machine.write(BAR0 + 0x1C, 4, 0)
    machine.write(BAR0 + 0x18, 4, command)
    return wait_for("the copy", lambda: machine.read(BAR0 + 0x1C, 4))


def test_configuration_and_bars(tmp_path, serve):
    with Qtest(tmp_path, serve()) as machine:
        machine.bring_up_port()
        assert machine.cfg_read(PORT_BUS, 0, 0) == 0x100E_1B36
        assert [machine.bar_size(PORT_BUS, 0, bar) for bar in range(6)] == [4096, 0, 4096, 0, 0, 0]
        assert machine.capability(PORT_BUS, 0, 0x05) == 0x40
        assert machine.capability(PORT_BUS, 0, 0x11) is None
        bring_up(machine)
        # Bytes, words and all that: what is written is what is read.
        machine.write(BAR0 + 0x28, 4, 0x1234_5678)
        assert machine.read(BAR0 + 0x28, 4) == 0x1234_5678
        assert machine.read(BAR0 + 0x2A, 2) == 0x1234
        assert machine.read(BAR0 + 0x29, 1) == 0x56
        machine.write(BAR0 + 0x29, 1, 0xAB)
        assert machine.read(BAR0 + 0x28, 4) == 0x1234_AB78
        pattern = bytes(range(256)) * 16
        machine.write_bytes(BAR2, pattern)
        assert machine.read_bytes(BAR2, 4096) == pattern
        # Another place for the BAR: the old one falls silent.
        machine.cfg_write(PORT_BUS, 0, 0x18, BAR4)
        assert machine.read_bytes(BAR4 + 0x100, 16) == pattern[:16]
        assert machine.read(BAR2, 4) in (0, 0xFFFF_FFFF)


def test_dma(tmp_path, serve):
    with Qtest(tmp_path, serve()) as machine:
        bring_up(machine)
        data = os.urandom(64 * 1024)
        machine.write_bytes(0x10_0000, data)
        assert copy(machine, 0x10_0000, 0x20_0003, len(data)) == 1
        assert machine.read_bytes(0x20_0003, len(data)) == data
        # Where no memory is, there is a fault, and the target stays as it was.
        assert copy(machine, 0x8_0000_0000, 0x20_0003, 4096) == 2
        assert machine.read_bytes(0x20_0003, 4096) == data[:4096]


def test_interrupts(tmp_path, serve):
    with Qtest(tmp_path, serve()) as machine:
        bring_up(machine)
        # The interrupt controller of q35 needs a guest; a page of memory takes the message as well.
        machine.cfg_write(PORT_BUS, 0, 0x44, 0x30_0000)
        machine.cfg_write(PORT_BUS, 0, 0x48, 0)
        machine.cfg_write(PORT_BUS, 0, 0x4C, 0x4240, 2)
        # Four vectors, enabled.
        machine.cfg_write(PORT_BUS, 0, 0x42, 0x0021, 2)
        machine.write(0x30_0000, 4, 0)
        machine.write_bytes(0x10_0000, b"before the interrupt")
        assert copy(machine, 0x10_0000, 0x20_0000, 20, vector=3) == 1
        wait_for("the message", lambda: machine.read(0x30_0000, 4) == 0x4243)
        assert machine.read_bytes(0x20_0000, 20) == b"before the interrupt"
        machine.cfg_write(PORT_BUS, 0, 0x42, 0x0020, 2)
        machine.write(0x30_0000, 4, 0)
        assert copy(machine, 0, 0, 0, command=2, vector=1) == 1
        assert machine.read(0x30_0000, 4) == 0


def test_msix_by_flag(tmp_path, serve):
    with Qtest(tmp_path, serve("--msix")) as machine:
        bring_up(machine)
        machine.cfg_write(PORT_BUS, 0, 0x20, BAR4)
        machine.cfg_write(PORT_BUS, 0, 0x24, 0)
        at = machine.capability(PORT_BUS, 0, 0x11)
        machine.cfg_write(PORT_BUS, 0, at + 2, 0x8000, 2)
        entry = BAR4 + 2 * 16
        for offset, value in [(0, 0x30_0000), (4, 0), (8, 0x77), (12, 0)]:
            machine.write(entry + offset, 4, value)
        machine.write(0x30_0000, 4, 0)
        assert copy(machine, 0, 0, 0, command=2, vector=2) == 1
        wait_for("the message", lambda: machine.read(0x30_0000, 4) == 0x77)


def test_answers_that_take_a_while_and_answers_that_never_come(tmp_path, serve):
    with Qtest(tmp_path, serve("--late", "100")) as machine:
        bring_up(machine)
        machine.write(BAR0 + 0x28, 4, 0x1234_5678)
        assert machine.read(BAR0 + 0x28, 4) == 0x1234_5678
    with Qtest(tmp_path, serve("--late", "2000", name="other")) as machine:
        bring_up(machine)
        for _ in range(3):
            assert machine.read(BAR0 + 0x28, 4) == 0xFFFF_FFFF
        machine.write(BAR2, 4, 1)
        assert machine.read(BAR2, 4) == 1


def test_the_device_is_unplugged_and_plugged_again(tmp_path, serve):
    device = serve()
    with Qtest(tmp_path, device) as machine:
        bring_up(machine)
        for _ in range(3):
            machine.qmp("device_del", id="slot")
            # Nobody presses the button that a guest would: turn the slot's power off and its light, as pciehp does.
            express = machine.capability(0, 4, 0x10)
            machine.cfg_write(0, 4, express + 0x18, 0x07C0, 2)
            machine.qmp.event("DEVICE_DELETED")
            assert machine.cfg_read(PORT_BUS, 0, 0) == 0xFFFF_FFFF
            machine.cfg_write(0, 4, express + 0x18, 0x01C0, 2)
            machine.qmp("device_add", **device)
            wait_for("the device", lambda: machine.cfg_read(PORT_BUS, 0, 0) == 0x100E_1B36)
            bring_up(machine)
            assert machine.read(BAR0 + 0x28, 4) == 0
            machine.write(BAR0 + 0x28, 4, 7)
