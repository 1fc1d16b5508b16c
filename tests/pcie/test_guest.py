"""The stock Linux nvme driver, in an unmodified Debian kernel, on devices behind both proxies."""

import hashlib
import os
import pathlib
import subprocess

import pytest

from guest import Guest, device
from qemu import wait_for

SLOTS = pathlib.Path(os.environ["DXPU_PCIE_EXAMPLES"]) / "nvme_slots"
MIB = 1 << 20


class Boxes:
    """Two devices of 6 MiB with random contents, each behind a socket."""

    def __init__(self, folder, *options):
        self.files = [folder / f"disk-{n}" for n in range(2)]
        self.sockets = [folder / f"slot-{n}" for n in range(2)]
        for file in self.files:
            file.write_bytes(os.urandom(6 * MIB))
        pairs = [f"{socket}={file}" for socket, file in zip(self.sockets, self.files)]
        self.process = subprocess.Popen([SLOTS, *options, *pairs], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        wait_for("the slots", lambda: all(socket.exists() for socket in self.sockets))

    def say(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def stats(self):
        self.say("stats")
        return [self.process.stdout.readline() for _ in self.files]

    def sha(self, n):
        return hashlib.sha256(self.files[n].read_bytes()).hexdigest()


@pytest.fixture
def boxes(tmp_path, request):
    started = []

    def start(*options):
        started.append(Boxes(tmp_path, *options))
        return started[0]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


def verified_io(guest, boxes, number, disk):
    """Reads all of it, writes some, reads that back; and the file on the box agrees."""
    assert guest.run(f"sha256sum /dev/{disk}", 120).split()[0] == boxes.sha(number)
    guest.run("dd if=/dev/urandom of=/tmp/data bs=64k count=40 2>/dev/null", 120)
    want = guest.run("sha256sum < /tmp/data").split()[0]
    guest.run(f"dd if=/tmp/data of=/dev/{disk} bs=128k seek=5 conv=fsync 2>/dev/null", 120)
    # An odd place and an odd size, so that PRP lists begin inside a page.
    guest.run(f"dd if=/tmp/data of=/dev/{disk} bs=512 skip=1 seek=9001 count=999 oflag=direct 2>/dev/null", 120)
    guest.run("echo 3 > /proc/sys/vm/drop_caches")
    back = guest.run(f"dd if=/dev/{disk} bs=128k skip=5 count=20 2>/dev/null | sha256sum", 120).split()[0]
    assert back == want
    contents = boxes.files[number].read_bytes()
    assert hashlib.sha256(contents[5 * 128 * 1024:][:40 * 65536]).hexdigest() == want
    small = guest.run("dd if=/tmp/data bs=512 skip=1 count=999 2>/dev/null | sha256sum").split()[0]
    assert hashlib.sha256(contents[9001 * 512:][:999 * 512]).hexdigest() == small


@pytest.mark.parametrize("iommu", [False, True], ids=["plain", "iommu"])
def test_a_disk_from_the_start(tmp_path, boxes, iommu):
    boxes = boxes()
    with Guest(tmp_path, *device(boxes.sockets[0]), iommu=iommu) as guest:
        guest.wait_for("[ -b /dev/nvme0n1 ]")
        assert guest.run("cat /sys/class/nvme/nvme0/serial").strip() == "dxpu-0"
        assert "1B36:0010" in guest.run("cat /sys/bus/pci/devices/*/uevent")
        verified_io(guest, boxes, 0, "nvme0n1")
        assert "nvme" in guest.run("cat /proc/interrupts")
        assert "foreign_requester: 0, unexpected_completion: 0, outside_memory: 0" in boxes.stats()[0]


def test_message_signalled_interrupts_from_a_table_over_a_slow_network(tmp_path, boxes):
    boxes = boxes("--msix", "--delay", "300")
    with Guest(tmp_path, *device(boxes.sockets[0])) as guest:
        guest.wait_for("[ -b /dev/nvme0n1 ]")
        assert "MSIX" in guest.run("grep nvme /proc/interrupts").replace("-", "").upper()
        verified_io(guest, boxes, 0, "nvme0n1")


def test_disks_are_plugged_and_unplugged(tmp_path, boxes):
    boxes = boxes()
    with Guest(tmp_path) as guest:
        assert "nvme0" not in guest.run("ls /dev")
        guest.plug(1, boxes.sockets[0])
        guest.wait_for("[ -b /dev/nvme0n1 ]")
        verified_io(guest, boxes, 0, "nvme0n1")
        guest.unplug(1)
        guest.wait_for("[ ! -e /dev/nvme0n1 ]")
        # Another box's device takes its place.
        guest.plug(1, boxes.sockets[1])
        guest.wait_for("[ -b /dev/nvme0n1 ]")
        assert guest.run("cat /sys/class/nvme/nvme0/serial").strip() == "dxpu-1"
        verified_io(guest, boxes, 1, "nvme0n1")


def let_go(guest):
    """Asks for the device in the first slot; says whether it could be asked. A guest that has switched the slot off already has
    let go of it by itself: then QEMU knows no such device."""
    try:
        guest.qmp("device_del", id="dev1")
    except RuntimeError as error:
        return "not found" in str(error)
    return True


def test_a_box_that_dies_gives_errors_and_no_hang(tmp_path, boxes):
    boxes = boxes()
    with Guest(tmp_path) as guest:
        guest.plug(1, boxes.sockets[0])
        guest.wait_for("[ -b /dev/nvme0n1 ]")
        verified_io(guest, boxes, 0, "nvme0n1")
        guest.run("(dd if=/dev/nvme0n1 of=/dev/null bs=4k count=400000 iflag=direct; echo $? > /tmp/end) >/dev/null 2>&1 &")
        boxes.say("remove 0")
        # The driver notices, gives up on the controller, and the reader gets an error.
        guest.wait_for("[ -e /tmp/end ]", 90)
        assert guest.run("cat /tmp/end").strip() != "0"
        guest.unplug(1)
        guest.wait_for("[ ! -e /dev/nvme0n1 ]")
        # A device that is gone before QEMU has copied its configuration. QEMU's walk over a list of capabilities full of ones
        # had no end, and its monitor never answered again; and QEMU crashes when the copying fails.
        guest.plug(1, boxes.sockets[0])
        assert guest.qmp("query-status")["status"] == "running"
        # The guest looks, finds nobody, and switches the slot off; while its light blinks it cannot be asked.
        wait_for("the guest has looked", lambda: let_go(guest), 60)
        guest.qmp.event("DEVICE_DELETED", 60)
        assert "nvme0" not in guest.run("ls /dev")
        # The slot is usable again.
        boxes.say("restore 0")
        guest.plug(1, boxes.sockets[0])
        guest.wait_for("[ -b /dev/nvme0n1 ]")
        verified_io(guest, boxes, 0, "nvme0n1")
