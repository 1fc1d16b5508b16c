"""A CUDA program inside a guest: libcuda.so.1, a PCI function, a worker behind it, and no network at all."""

import os
import pathlib
import re
import subprocess

import pytest

from guest import Guest, device
from qemu import HERE, packages, wait_for

RELEASE = pathlib.Path(os.environ["DXPU_PCIE_RELEASE"])
SLOT = pathlib.Path(os.environ["DXPU_PCIE_EXAMPLES"]) / "gpu_slot"
TOKEN = "a token of the judges"
ADDRESS = "pcie:0000:01:00.0"
# What programs of the guest load. The C library is the one beside QEMU: newer than what the programs were built with.
LIBRARIES = ["libc.so.6", "libm.so.6", "libgcc_s.so.1"]


def guest_files(folder):
    """Programs and libraries for the guest, by their names there."""
    root = packages() / "qemu/usr"
    files = {f"lib/{name}": (root / "lib/x86_64-linux-gnu" / name).read_bytes() for name in LIBRARIES}
    files["lib64/ld-linux-x86-64.so.2"] = (root / "lib64/ld-linux-x86-64.so.2").read_bytes()
    subprocess.run(["strip", "--strip-debug", "-o", folder / "libcuda", RELEASE / "libcuda.so"], check=True)
    files["lib/libcuda.so.1"] = (folder / "libcuda").read_bytes()
    sources = {"gpu": HERE / "programs/gpu.c", "load": HERE / "../stories/programs/load.c"}
    for name, source in sources.items():
        subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", folder / name, source, "-ldl", "-lpthread"], check=True)
        files[f"bin/{name}"] = (folder / name).read_bytes()
    return files


class Worker:
    """A worker on the soft driver, and the function in front of it."""

    def __init__(self, folder):
        self.folder = folder
        self.socket = folder / "worker"
        self.slot = folder / "slot"
        self.start()
        self.function = subprocess.Popen([SLOT, f"{self.slot}={self.socket}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        wait_for("the slot", self.slot.exists)

    def start(self):
        self.log = open(self.folder / "worker.log", "ab")
        self.process = subprocess.Popen(
            [RELEASE / "dxpu", "worker", "--driver", "soft", "--listen", f"unix:{self.socket}", "--identity-dir", self.folder / "identity"],
            env=os.environ | {"DXPU_TOKEN": TOKEN}, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        wait_for("the worker", self.socket.exists)

    def say(self, command):
        self.function.stdin.write(command + "\n")
        self.function.stdin.flush()

    def stats(self):
        self.say("stats")
        return self.function.stdout.readline()

    def said(self):
        return (self.folder / "worker.log").read_text(errors="replace")

    def stop(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.stop()
        self.function.kill()
        self.function.wait()


@pytest.fixture
def worker(tmp_path):
    worker = Worker(tmp_path)
    yield worker
    worker.end()


def start(folder, worker, boot=" hugepages=32", iommu=False):
    guest = Guest(folder, *device(worker.slot), files=guest_files(folder), memory="512M", boot=boot, iommu=iommu)
    guest.run("mkdir -p /dev/hugepages && mount -t hugetlbfs none /dev/hugepages")
    guest.run(f"export DXPU_WORKER={ADDRESS} DXPU_TOKEN='{TOKEN}' LD_LIBRARY_PATH=/lib")
    return guest


def test_a_cuda_program_in_a_guest_without_a_network(tmp_path, worker):
    with start(tmp_path, worker) as guest:
        assert guest.run("ls /sys/class/net").split() in ([], ["lo"])
        assert "0x1b36 0xd804 0x120000" == guest.run("cd /sys/bus/pci/devices/0000:01:00.0; echo $(cat vendor device class); cd /")
        said = guest.run("gpu 4", 120)
        print(said)
        assert said.endswith("PASS"), said
        # Threads, streams, events, host functions, pinned memory; every result is checked.
        assert guest.run("load 2 3", 280).endswith("all right")
        assert "foreign_requester: 0, unexpected_completion: 0, outside_memory: 0, unsupported: 0" in worker.stats()


def test_programs_that_are_killed_leave_the_function_usable(tmp_path, worker):
    with start(tmp_path, worker) as guest:
        for _ in range(2):
            guest.run("gpu 1 forever > /tmp/said 2>&1 & echo $! > /tmp/pid")
            guest.wait_for("grep -q working /tmp/said", 60)
            guest.run("kill -9 $(cat /tmp/pid); wait $(cat /tmp/pid)", check=False)
            said = guest.run("gpu 1", 120)
            assert said.endswith("PASS"), said
        # Who was killed has no session any longer: the next program has ended it.
        wait_for("all sessions to end", lambda: worker.said().count("session ended") == worker.said().count("session began"))
        # Two programs at the same time.
        guest.run("gpu 1 > /tmp/one 2>&1 & gpu 1 > /tmp/two 2>&1 & wait", 200)
        assert guest.run("tail -n1 /tmp/one /tmp/two").count("PASS") == 2


def test_a_worker_that_dies_is_an_error_and_the_next_one_is_used(tmp_path, worker):
    with start(tmp_path, worker) as guest:
        guest.run("(load 1 0 > /tmp/said 2>&1; echo $? > /tmp/end) &")
        guest.wait_for("grep -q working /tmp/said", 100)
        worker.stop()
        guest.wait_for("[ -s /tmp/end ]", 60)
        assert guest.run("cat /tmp/end").strip() == "7", guest.run("cat /tmp/said")
        said = guest.run("gpu 1", 60, check=False)
        assert "no worker" in said and "PASS" not in said, said
        worker.socket.unlink(missing_ok=True)
        worker.start()
        assert guest.run("gpu 1", 120).endswith("PASS")


def test_a_box_that_falls_silent_is_an_error_and_no_hang(tmp_path, worker):
    with start(tmp_path, worker) as guest:
        guest.run("(load 1 0 > /tmp/said 2>&1; echo $? > /tmp/end) &")
        guest.wait_for("grep -q working /tmp/said", 100)
        worker.say("cut 0")
        guest.wait_for("[ -s /tmp/end ]", 60)
        assert guest.run("cat /tmp/end").strip() == "7", guest.run("cat /tmp/said")
        said = guest.run("gpu 1", 60, check=False)
        assert "does not answer" in said, said


def test_what_is_missing_is_said(tmp_path, worker):
    with start(tmp_path, worker, boot="") as guest:
        assert "nr_hugepages" in guest.run("gpu 1", 60, check=False)
        guest.run("echo 16 > /proc/sys/vm/nr_hugepages")
        assert guest.run("gpu 1", 120).endswith("PASS")
        other = guest.run("DXPU_WORKER=pcie:0000:00:00.0 gpu 1", 60, check=False)
        assert re.search(r"8086:\w+, not a dxpu GPU function", other), other
        nobody = guest.run("DXPU_WORKER=pcie:0000:77:00.0 gpu 1", 60, check=False)
        assert "no PCI device 0000:77:00.0" in nobody, nobody
        guest.run("umount /dev/hugepages")
        assert "mount -t hugetlbfs" in guest.run("gpu 1", 60, check=False)


def test_an_iommu_is_named_and_may_be_told_to_let_the_function_through(tmp_path, worker):
    with start(tmp_path, worker, iommu=True) as guest:
        said = guest.run("gpu 1", 60, check=False)
        assert "IOMMU" in said and "PASS" not in said, said
        guest.run("echo identity > /sys/bus/pci/devices/0000:01:00.0/iommu_group/type")
        assert guest.run("gpu 1", 120).endswith("PASS")
