"""A stock Debian kernel with busybox around it, driven through its serial console."""

import gzip
import io
import json
import os
import re
import select
import subprocess
import time

from qemu import Qmp, packages

INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp /sbin /usr/bin /usr/sbin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
echo 4 > /proc/sys/kernel/printk
stty -echo -onlcr
echo GUEST-IS-UP
exec sh
"""


def initramfs(busybox, files):
    """A cpio archive ("newc") of busybox, an init, and more files, by their names in the guest."""
    out = io.BytesIO()
    inode = 0

    def add(name, mode, data=b"", device=(0, 0)):
        nonlocal inode
        inode += 1
        name = name.encode() + b"\0"
        fields = [inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name), 0]
        out.write(b"070701" + b"".join(b"%08X" % field for field in fields) + name)
        out.write(b"\0" * (-out.tell() % 4))
        out.write(data)
        out.write(b"\0" * (-out.tell() % 4))

    add("bin", 0o040755)
    add("dev", 0o040755)
    add("dev/console", 0o020600, device=(5, 1))
    add("bin/busybox", 0o100755, busybox.read_bytes())
    add("init", 0o100755, INIT.encode())
    folders = {"bin", "dev"}
    for name, contents in files.items():
        parts = name.split("/")[:-1]
        for folder in ("/".join(parts[:n + 1]) for n in range(len(parts))):
            if folder not in folders:
                folders.add(folder)
                add(folder, 0o040755)
        add(name, 0o100755, contents)
    add("TRAILER!!!", 0)
    return gzip.compress(out.getvalue(), 1)


def lspci():
    """The program and what it loads, by their names in a guest."""
    root = packages() / "pciutils/usr"
    loader, libraries = root / "lib64/ld-linux-x86-64.so.2", root / "lib/x86_64-linux-gnu"
    program = next(path for path in (root / "bin/lspci", root / "sbin/lspci") if path.exists())
    listed = subprocess.run([loader, "--library-path", libraries, "--list", program], check=True, capture_output=True, text=True).stdout
    files = {"bin/lspci": program.read_bytes(), "lib64/ld-linux-x86-64.so.2": loader.read_bytes()}
    for path in re.findall(r"=> (/\S+)", listed):
        files["lib/" + os.path.basename(path)] = open(path, "rb").read()
    return files


class Guest:
    """Boots at once; commands are lines of shell."""

    def __init__(self, folder, *arguments, iommu=False, slots=2, files=None, memory="256M", boot=""):
        place = packages()
        image = folder / "initramfs"
        image.write_bytes(initramfs(place / "busybox", files or {}))
        machine = "q35,accel=tcg,memory-backend=m0" + (",kernel-irqchip=split" if iommu else "")
        command = [
            place / "qemu-system-x86_64", "-nodefaults", "-display", "none", "-no-reboot", "-M", machine, "-smp", "1",
            "-object", f"memory-backend-memfd,id=m0,size={memory},share=on", "-m", memory,
            "-kernel", place / "vmlinuz", "-initrd", image,
            # Slots are operated as PCI Express has it.
            "-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off",
            "-append", "console=ttyS0 quiet panic=-1 mitigations=off pciehp.pciehp_debug=0 nvme_core.io_timeout=5 nvme_core.admin_timeout=5"
            + (" intel_iommu=on" if iommu else "") + boot,
            "-serial", "stdio", "-qmp", f"unix:{folder}/qmp,server=on,wait=off",
        ]
        if iommu:
            command += ["-device", "intel-iommu,caching-mode=on,device-iotlb=off"]
        for slot in range(1, slots + 1):
            command += ["-device", f"pcie-root-port,id=rp{slot},slot={slot},chassis={slot},addr={3 + slot}.0"]
        command += arguments
        self.log = open(folder / "qemu.log", "w+")
        self.console = open(folder / "console.log", "wb")
        self.process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log)
        self.text = b""
        self.number = 0
        self.qmp = Qmp(folder / "qmp")
        self.until(b"GUEST-IS-UP", 120)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.seek(0)
        errors = self.log.read().strip()
        if errors:
            print("QEMU says:", errors)

    def until(self, mark, seconds):
        """Reads the console up to `mark` and gives what came before it."""
        deadline = time.monotonic() + seconds
        while mark not in self.text:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self.process.stdout], [], [], max(left, 0))
            if not ready:
                raise AssertionError(f"no {mark!r} within {seconds} s; the console ends: {self.text[-3000:].decode(errors='replace')}")
            piece = os.read(self.process.stdout.fileno(), 65536)
            if not piece:
                raise AssertionError(f"QEMU is gone; the console ends: {self.text[-3000:].decode(errors='replace')}")
            self.console.write(piece)
            self.console.flush()
            self.text += piece
        before, _, self.text = self.text.partition(mark)
        return before.decode(errors="replace")

    def run(self, command, seconds=60, check=True):
        """Runs a line of shell; gives its output."""
        self.number += 1
        self.process.stdin.write(f"{command}\necho END-{self.number}=$?=\n".encode())
        self.process.stdin.flush()
        output = self.until(f"END-{self.number}=".encode(), seconds)
        code = int(self.until(b"=", 10))
        output = re.sub(r"(?m)^(~|/) # ", "", output.replace("\r", "")).replace("/ # ", "").replace("~ # ", "")
        if check and code != 0:
            raise AssertionError(f"{command!r} failed with {code}: {output}")
        return output.strip()

    def wait_for(self, command, seconds=60):
        """Repeats a line of shell until it succeeds."""
        return self.run(f"n=0; until {command}; do n=$((n+1)); [ $n -lt {seconds * 10} ] || break; sleep 0.1; done; {command}", seconds + 30)

    def plug(self, slot, socket):
        self.qmp("device_add", driver="vfio-user-pci", id=f"dev{slot}", bus=f"rp{slot}", socket={"type": "unix", "path": str(socket)})

    def unplug(self, slot, seconds=60):
        self.qmp("device_del", id=f"dev{slot}")
        self.qmp.event("DEVICE_DELETED", seconds)


def device(socket, bus="rp1", name="dev1"):
    """A device that is there from the start."""
    return ["-device", json.dumps({"driver": "vfio-user-pci", "id": name, "bus": bus, "socket": {"type": "unix", "path": str(socket)}})]
