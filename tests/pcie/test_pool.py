"""Devices from a pool in an unmodified guest: leased, plugged, used, moved, given back; over the fabric, between processes."""

import hashlib
import os
import pathlib
import signal
import time

import pytest

from guest import Guest, lspci
from pool import Pool, until
from test_gpu_function import guest_files
from test_guest import MIB, verified_io


class Disks:
    """Files of 6 MiB with random contents, one for each box."""

    def __init__(self, folder, *names):
        self.files = [folder / f"disk-{name}" for name in names]
        for file in self.files:
            file.write_bytes(os.urandom(6 * MIB))

    def sha(self, number):
        return hashlib.sha256(self.files[number].read_bytes()).hexdigest()


def monitor(folder):
    """A monitor for the host: each talks to one client, and the test has the other."""
    return ["-qmp", f"unix:{folder}/hv.qmp,server=on,wait=off"]


@pytest.fixture
def world(tmp_path, request):
    """A pool, two boxes with a disk each, a guest with two empty slots."""
    iommu = getattr(request, "param", False)
    disks = Disks(tmp_path, "a", "b")
    with Pool(tmp_path) as pool:
        for number, name in enumerate("ab"):
            pool.box(f"box-{name}", "--device", f"nvme:{disks.files[number]}")
        pool.host("hv", "--qmp", tmp_path / "hv.qmp", "--slots", "2")
        pool.ask("host", "allow", "hv", "lab")
        with Guest(tmp_path, *monitor(tmp_path), iommu=iommu, files=lspci()) as guest:
            yield pool, guest, disks


def lease(pool, *options):
    """Leases one disk for the host; gives the lease's name."""
    made = pool.json("lease", "create", "--tenant", "lab", "--plane", "pcie", "--host", "hv", "--ttl", "1h", *(options or ("--model", "nvme")))
    name = made["id"]
    until(lambda: f"it is plugged: {pool.leases()[name]} {pool.log('hv')[-2000:]}",
          lambda: [grant["attachment"]["phase"] for grant in pool.leases()[name]["grants"]] == ["plugged"])
    return name


def box_of(pool, name):
    return pool.leases()[name]["grants"][0]["gpu"].split("/")[0]


@pytest.mark.parametrize("world", [False, True], ids=["plain", "iommu"], indirect=True)
def test_a_disk_is_leased_used_released_and_anothers_takes_its_place(world):
    pool, guest, disks = world
    assert "nvme0" not in guest.run("ls /dev")
    for gpu in ("box-a/0", "box-b/0"):
        pool.free(gpu)
    first = lease(pool)
    guest.wait_for("[ -b /dev/nvme0n1 ]")
    assert "0108: 1b36:0010" in guest.run("LD_LIBRARY_PATH=/lib lspci -n")
    serial = guest.run("cat /sys/class/nvme/nvme0/serial").strip()
    number = "ab".index(box_of(pool, first)[-1])
    assert serial == f"{box_of(pool, first)}-0"
    verified_io(guest, disks, number, "nvme0n1")
    pool.ask("lease", "release", first)
    guest.wait_for("[ ! -e /dev/nvme0n1 ]")
    pool.free(f"{box_of_number(number)}/0")
    # What the guest wrote is gone with its lease.
    assert disks.files[number].read_bytes() == bytes(6 * MIB)

    pool.ask("box", "drain", box_of_number(number))
    second = lease(pool)
    other = 1 - number
    assert box_of(pool, second) == box_of_number(other)
    guest.wait_for("[ -b /dev/nvme0n1 ]")
    assert guest.run("cat /sys/class/nvme/nvme0/serial").strip() == f"{box_of_number(other)}-0"
    verified_io(guest, disks, other, "nvme0n1")


def box_of_number(number):
    return f"box-{'ab'[number]}"


def test_an_idle_guest_does_not_notice_a_paused_box(world):
    """Two seconds without a word, then a pause of 40 ms: once that cost the guest its disk, and the disk its contents."""
    pool, guest, disks = world
    for gpu in ("box-a/0", "box-b/0"):
        pool.free(gpu)
    name = lease(pool)
    guest.wait_for("[ -b /dev/nvme0n1 ]")
    before = pool.leases()[name]["grants"]
    box = box_of(pool, name)
    number = "ab".index(box[-1])
    verified_io(guest, disks, number, "nvme0n1")
    known = disks.sha(number)
    for seconds in (0.04, 2):
        time.sleep(2)
        timer = pool.pause(box, seconds)
        said = guest.run("dd if=/dev/nvme0n1 bs=64k iflag=direct 2>/dev/null | sha256sum")
        timer.join()
        assert said.split()[0] == known, said
        # In the middle of writing, too.
        guest.run("dd if=/dev/urandom of=/tmp/new bs=64k count=8 2>/dev/null")
        timer = pool.pause(box, seconds)
        guest.run("dd if=/tmp/new of=/dev/nvme0n1 bs=16k oflag=direct conv=fsync 2>/dev/null")
        timer.join()
        wrote = guest.run("sha256sum < /tmp/new").split()[0]
        assert hashlib.sha256(disks.files[number].read_bytes()[:512 << 10]).hexdigest() == wrote
        known = disks.sha(number)
    assert pool.leases()[name]["grants"] == before
    assert "I/O error" not in guest.run("dmesg")
    assert guest.qmp("query-status")["status"] == "running"

    # A virtual machine that hangs is told from one that is gone, and nobody waits for it for ever.
    guest.process.send_signal(signal.SIGSTOP)
    pool.ask("lease", "release", name)
    silent = lambda: pool.json("host", "ls")[0].get("monitors_silent", 0)
    until(lambda: f"its monitor is silent: {pool.log('hv')[-2000:]}", silent)
    assert "monitor silent" in pool.ask("host", "ls")
    assert "end that QEMU and start it again" in pool.ask("host", "show", "hv")
    guest.process.send_signal(signal.SIGCONT)
    until(lambda: f"its monitor answers: {pool.log('hv')[-2000:]}", lambda: not silent())
    kinds = [event["kind"] for event in pool.json("event", "ls")]
    assert "host_monitor_silent" in kinds and "host_monitor_back" in kinds
    guest.wait_for("[ ! -e /dev/nvme0n1 ]")


def test_a_box_killed_under_io_gives_errors_and_the_other_boxs_disk_comes(world):
    pool, guest, disks = world
    for gpu in ("box-a/0", "box-b/0"):
        pool.free(gpu)
    name = lease(pool)
    guest.wait_for("[ -b /dev/nvme0n1 ]")
    victim = box_of(pool, name)
    number = "ab".index(victim[-1])
    verified_io(guest, disks, number, "nvme0n1")
    guest.run("(dd if=/dev/nvme0n1 of=/dev/null bs=4k count=400000 iflag=direct; echo $? > /tmp/end) >/dev/null 2>&1 &")
    pool.kill(victim)
    # The driver notices, gives up on the controller, and the reader gets an error.
    guest.wait_for("[ -e /tmp/end ]", 90)
    assert guest.run("cat /tmp/end").strip() != "0"
    # The manager notices too, and the lease goes to the other box: the same slot is used again.
    until(lambda: f"it moves: {pool.leases()[name]}", lambda: pool.leases()[name]["grants"] and box_of(pool, name) != victim, 90)
    guest.wait_for(f"cat /sys/class/nvme/nvme*/serial 2>/dev/null | grep -q {box_of_number(1 - number)}-0", 120)
    guest.wait_for("ls /dev/nvme*n1 >/dev/null 2>&1", 60)
    disk = guest.run("ls /dev | grep 'nvme.*n1'").split()[0]
    verified_io(guest, disks, 1 - number, disk)


def test_a_cuda_program_in_a_guest_computes_on_a_leased_gpu(tmp_path):
    """The GPU's worker is a process of the box; the guest has no network, no token, and only libcuda.so.1."""
    with Pool(tmp_path) as pool:
        pool.box("box-a", "--soft", "1", "--memory", "1GiB")
        pool.host("hv", "--qmp", tmp_path / "hv.qmp", "--slots", "1")
        pool.ask("host", "allow", "hv", "lab")
        with Guest(tmp_path, *monitor(tmp_path), slots=1, files=guest_files(tmp_path), memory="512M", boot=" hugepages=32") as guest:
            guest.run("mkdir -p /dev/hugepages && mount -t hugetlbfs none /dev/hugepages")
            assert guest.run("ls /sys/class/net").split() in ([], ["lo"])
            pool.free("box-a/0")
            for _ in range(2):
                name = lease(pool, "--model", "soft")
                guest.wait_for("grep -q 0xd804 /sys/bus/pci/devices/*/device")
                where = guest.run("basename $(dirname $(grep -l 0xd804 /sys/bus/pci/devices/*/device))")
                said = guest.run(f"DXPU_WORKER=pcie:{where} LD_LIBRARY_PATH=/lib gpu 4", 120)
                assert said.endswith("PASS"), said
                pool.ask("lease", "release", name)
                guest.wait_for("! grep -q 0xd804 /sys/bus/pci/devices/*/device")
                pool.free("box-a/0")


def test_a_foreign_device_is_shown_to_the_guest(tmp_path):
    """A device that another program serves by vfio-user, on the box."""
    import subprocess
    program = pathlib.Path(os.environ["DXPU_PCIE_EXAMPLES"]) / "copier"
    socket = tmp_path / "copier"
    served = subprocess.Popen([program, socket], stdin=subprocess.DEVNULL)
    try:
        until("it serves", socket.exists)
        with Pool(tmp_path) as pool:
            pool.box("box-a", "--device", f"vfio-user:{socket}")
            pool.host("hv", "--qmp", tmp_path / "hv.qmp", "--slots", "1")
            pool.ask("host", "allow", "hv", "lab")
            with Guest(tmp_path, *monitor(tmp_path), slots=1, files=lspci()) as guest:
                pool.free("box-a/0")
                pool.ask("lease", "create", "--tenant", "lab", "--plane", "pcie", "--host", "hv", "--model", "vfio-user", "--ttl", "1h")
                guest.wait_for("LD_LIBRARY_PATH=/lib lspci -n | grep 1b36:100e")
    finally:
        served.kill()
        served.wait()
