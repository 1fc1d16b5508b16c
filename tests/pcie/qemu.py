"""QEMU as the judges of the PCIe plane use it: started from the packages that `setup` unpacked, driven by text.

With qtest there is no guest: every register and every byte of memory is read and written from here, through a real root
port and QEMU's own vfio-user client.
"""

import json
import pathlib
import socket
import subprocess
import time

HERE = pathlib.Path(__file__).resolve().parent


def packages():
    """The folder with QEMU, the kernel and busybox."""
    done = subprocess.run([HERE / "setup"], check=True, stdout=subprocess.PIPE, text=True)
    return pathlib.Path(done.stdout.strip().splitlines()[-1])


def wait_for(what, condition, seconds=10):
    """Polls until `condition` gives something true, and returns it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"never happened: {what}")


class Qmp:
    """QEMU's monitor."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        wait_for("QEMU's monitor", lambda: self.socket.connect_ex(str(path)) == 0)
        self.socket.settimeout(30)
        self.lines = self.socket.makefile("r")
        self.events = []
        json.loads(self.lines.readline())
        self("qmp_capabilities")

    def __call__(self, command, **arguments):
        message = {"execute": command, "arguments": arguments}
        self.socket.sendall(json.dumps(message).encode() + b"\n")
        while True:
            line = self.lines.readline()
            if not line:
                raise AssertionError("QEMU is gone")
            answer = json.loads(line)
            if "event" in answer:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{command}: {answer['error']}")
            else:
                return answer["return"]

    def event(self, name, seconds=20):
        """Waits for an event of that name."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for event in self.events:
                if event["event"] == name:
                    self.events.remove(event)
                    return event
            self("query-status")
            time.sleep(0.02)
        raise AssertionError(f"no event {name}")


class Qtest:
    """A machine without a guest."""

    # Where the first root port's windows and the device's BARs are put.
    ECAM = 0xB000_0000
    WINDOW = 0xFE00_0000

    def __init__(self, folder, *devices, memory="64M", extra=()):
        place = packages()
        self.log = open(folder / "qemu.log", "w+")
        command = [
            place / "qemu-system-x86_64", "-nodefaults", "-display", "none", "-S", "-qtest", "stdio", "-accel", "tcg",
            "-M", "q35,memory-backend=m0", "-object", f"memory-backend-memfd,id=m0,size={memory},share=on",
            # Slots are operated as PCI Express has it, not through ACPI: there is no firmware to run.
            "-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off",
            "-qmp", f"unix:{folder}/qmp,server=on,wait=off",
            "-device", "pcie-root-port,id=rp1,slot=1,chassis=1,addr=4.0",
        ]
        for device in devices:
            command += ["-device", device if isinstance(device, str) else json.dumps(device)]
        command += extra
        self.process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.qmp = Qmp(folder / "qmp")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.seek(0)
        text = self.log.read()
        lines = [line for line in text.splitlines() if not line.startswith(("[I ", "[R +", "[S +"))]
        if lines:
            print("\n".join(lines))

    def command(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError(f"QEMU is gone at: {text}")
            if line.startswith("IRQ"):
                continue
            assert line.startswith("OK"), f"{text}: {line}"
            return line[2:].strip()

    # Memory, as a processor sees it.
    def read(self, address, size):
        letter = {1: "b", 2: "w", 4: "l", 8: "q"}[size]
        return int(self.command(f"read{letter} {address:#x}"), 0)

    def write(self, address, size, value):
        letter = {1: "b", 2: "w", 4: "l", 8: "q"}[size]
        self.command(f"write{letter} {address:#x} {value:#x}")

    def read_bytes(self, address, count):
        return bytes.fromhex(self.command(f"read {address:#x} {count:#x}")[2:])

    def write_bytes(self, address, data):
        self.command(f"write {address:#x} {len(data):#x} 0x{data.hex()}")

    # Configuration space through the memory-mapped window of q35.
    def map_config(self):
        self.command(f"outl 0xcf8 {0x80000000 | 0x60:#x}")
        self.command(f"outl 0xcfc {self.ECAM | 1:#x}")

    def config(self, bus, device, offset, function=0):
        return self.ECAM + (bus << 20) + (device << 15) + (function << 12) + offset

    def cfg_read(self, bus, device, offset, size=4):
        return self.read(self.config(bus, device, offset), size)

    def cfg_write(self, bus, device, offset, value, size=4):
        self.write(self.config(bus, device, offset), size, value)

    def bring_up_port(self, device=4, bus=1):
        """Gives the root port a bus and 16 MiB of memory."""
        self.map_config()
        self.cfg_write(0, device, 0x18, bus << 16 | bus << 8)
        base = self.WINDOW >> 16
        self.cfg_write(0, device, 0x20, (base + 0xF0) << 16 | base)
        self.cfg_write(0, device, 0x24, 0x0000_FFF0)
        self.cfg_write(0, device, 0x04, 0x0006, 2)

    def bar_size(self, bus, device, bar):
        at = 0x10 + 4 * bar
        before = self.cfg_read(bus, device, at)
        self.cfg_write(bus, device, at, 0xFFFF_FFFF)
        mask = self.cfg_read(bus, device, at)
        self.cfg_write(bus, device, at, before)
        return (~(mask & ~0xF) + 1) & 0xFFFF_FFFF if mask else 0

    def capability(self, bus, device, wanted):
        at = self.cfg_read(bus, device, 0x34, 1)
        for _ in range(48):
            if at == 0:
                return None
            if self.cfg_read(bus, device, at, 1) == wanted:
                return at
            at = self.cfg_read(bus, device, at + 1, 1)
        raise AssertionError("the list of capabilities has no end")
