"""Hosts of the PCIe plane: devices of two boxes in the slots of one host, whoever of them is killed or paused. No guest: the
slots are sockets, and whoever connects only looks at its device."""
import os
import random
import signal
import threading
import time

import kit
import pool_kit
import vfio_user


def tell(record):
    with pool_kit.Manager() as pool:
        here = Here(pool)
        record.part("a host that serves nobody: the lease waits and says why", waits, pool, here)
        record.part("plugged in, and taken out", plugged, pool, here)
        record.part("the box is paused while nobody does anything, and nobody notices", paused_idle, pool, here)
        record.part("the box is paused while a device is plugged in, looked at and taken out", paused_busy, pool, here)
        record.part("the box's agent is killed and started again: the lease has its own disk again, as it was", box_restarted, pool, here)
        record.part("the host is killed, and gets its device anew, as it was", host_killed, pool, here)
        record.part("the manager is killed, and nothing happens to the device", manager_killed, pool, here)
        record.part("the box is killed, and another's device takes the place", box_killed, pool, here)


class Here:
    """The processes of two boxes with a disk each, and of a host with two slots."""

    def __init__(self, pool):
        self.pool, self.processes = pool, {}
        for name in ("rack1-a", "rack1-b"):
            with open(os.path.join(pool.directory, f"{name}.img"), "wb") as disk:
                disk.truncate(16 << 20)
            disk = os.path.join(pool.directory, f"{name}.img")
            self.start(name, "box", "--device", f"nvme:{disk}", "--join-token-file", pool.credential(f"box/{name}"))
        self.start("hv-7", "host", "--slots", "2", "--join-token-file", pool.credential("host/hv-7"))
        pool.wait_for_gpus(2)
        kit.until(pool.logs, lambda: [host["state"] for host in pool.json("host", "ls")] == ["ready"], 30)

    def start(self, name, *arguments):
        state = os.path.join(self.pool.directory, f"state-{name}")
        process = self.pool._start(*arguments, "--fabric", "127.0.0.1:0", "--state-dir", state)
        self.processes[name] = process
        self.pool.boxes.append(process)

    def kill(self, name):
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()


def create(pool, *more):
    ask = ["lease", "create", "--plane", "pcie", "--host", "hv-7", "--tenant", "vision", "--ttl", "10m", *more]
    return pool.json(*ask)


def grant(pool, lease):
    grants = pool.json("lease", "show", lease["id"])["grants"]
    return grants[0] if grants else {"gpu": "", "epoch": 0}


def is_plugged(pool, lease):
    grants = pool.json("lease", "show", lease["id"])["grants"]
    return bool(grants) and grants[0]["attachment"]["phase"] == "plugged"


def gone(pool, lease):
    pool.must("lease", "release", lease["id"])
    kit.until(pool.logs, lambda: pool.json("lease", "show", lease["id"])["state"] == "ended", 30)
    kit.until(pool.logs, lambda: all("phase" not in slot for slot in pool.json("host", "show", "hv-7")["slots"]), 30)


def waits(pool, _):
    lease = create(pool)
    kit.hold(lease["state"] == "pending", lease)
    why = pool.must("lease", "explain", lease["id"])
    kit.hold("host hv-7 does not serve tenant vision" in why and "dxpu host allow hv-7 vision" in why, why)
    pool.must("lease", "release", lease["id"])
    kit.hold("hv-7 serves vision" in pool.must("host", "allow", "hv-7", "vision"), "allow")


def plugged(pool, _):
    lease = create(pool, "--wait")
    there = grant(pool, lease)
    kit.hold(there["attachment"] == {"host": "hv-7", "slot": 0, "phase": "plugged"}, there)
    kit.hold("host hv-7 slot 0 (plugged)" in pool.must("lease", "show", lease["id"]), "the table says so, too")
    kit.hold(pool.json("host", "show", "hv-7")["slots"][0]["gpu"] == there["gpu"], "the host says so, too")
    refused = pool.run("lease", "create", "--plane", "pcie")
    kit.hold(refused.returncode == 2 and "must name the host" in refused.stderr, refused)
    gone(pool, lease)
    again = create(pool, "--wait")
    kit.hold(grant(pool, again)["epoch"] > there["epoch"], "a new epoch")
    gone(pool, again)


BYTES = 16 << 20


def owner(grant):
    return grant["gpu"].split("/")[0]


def write(pool, grant):
    """Puts data onto the disk, as its guest would; gives them."""
    data = random.Random(grant["epoch"]).randbytes(BYTES)
    with open(os.path.join(pool.directory, f"{owner(grant)}.img"), "r+b") as disk:
        disk.write(data)
    return data


def read(pool, grant):
    with open(os.path.join(pool.directory, f"{owner(grant)}.img"), "rb") as disk:
        return disk.read()


def paused(here, name, seconds):
    """Stops a process now, and lets it go on after so many seconds."""
    process = here.processes[name]
    process.send_signal(signal.SIGSTOP)
    timer = threading.Timer(seconds, lambda: process.send_signal(signal.SIGCONT))
    timer.start()
    return timer


def socket_of(pool, grant):
    return os.path.join(pool.directory, "state-hv-7", "slots", f"slot-{grant['attachment']['slot']}")


def paused_idle(pool, here):
    lease = create(pool, "--wait")
    before = grant(pool, lease)
    data = write(pool, before)
    guest = vfio_user.Guest(socket_of(pool, before))
    known = guest.config()
    kit.hold(vfio_user.capabilities(known), "it has capabilities")
    for idle, seconds in ((0, 0.005), (2, 0.005), (2, 0.04), (1, 0.6), (1, 2.0)):
        # Longer than half a second without a word, then a word that is answered late.
        time.sleep(idle)
        timer = paused(here, owner(before), seconds)
        kit.hold(guest.config() == known, f"idle for {idle} s, paused for {seconds} s")
        timer.join()
    guest.close()
    kit.hold(grant(pool, lease) == before, "the same grant", grant(pool, lease), before)
    kit.hold(read(pool, before) == data, "what was on the disk is there")
    gone(pool, lease)
    kit.hold(read(pool, before) == bytes(BYTES), "it is emptied when its lease is over")


def paused_busy(pool, here):
    for seconds in (0.04, 1.5):
        timers = [paused(here, name, seconds) for name in ("rack1-a", "rack1-b")]
        lease = create(pool, "--wait")
        [timer.join() for timer in timers]
        before = grant(pool, lease)
        data = write(pool, before)
        guest = vfio_user.Guest(socket_of(pool, before))
        for _ in range(5):
            timer = paused(here, owner(before), seconds / 5)
            for _ in range(20):
                vfio_user.capabilities(guest.config())
            timer.join()
        kit.hold(grant(pool, lease) == before, "the same grant", grant(pool, lease), before)
        kit.hold(read(pool, before) == data, "what was on the disk is there")
        guest.close()
        timer = paused(here, owner(before), seconds)
        gone(pool, lease)
        timer.join()
        kit.hold(read(pool, before) == bytes(BYTES), "it is emptied when its lease is over")


def box_restarted(pool, here):
    lease = create(pool, "--wait")
    before = grant(pool, lease)
    data = write(pool, before)
    name = owner(before)
    here.kill(name)
    here.start(name, "box", "--device", f"nvme:{os.path.join(pool.directory, name)}.img")
    anew = lambda: grant(pool, lease)["epoch"] > before["epoch"] and is_plugged(pool, lease)
    kit.until(pool.logs, anew, 60)
    kit.hold(grant(pool, lease)["gpu"] == before["gpu"], "the same disk", grant(pool, lease))
    kit.hold(read(pool, before) == data, "what was on it is there")
    gone(pool, lease)
    kit.hold(read(pool, before) == bytes(BYTES), "it is emptied when its lease is over")


def host_killed(pool, here):
    lease = create(pool, "--wait")
    before = grant(pool, lease)
    data = write(pool, before)
    here.kill("hv-7")
    here.start("hv-7", "host", "--slots", "2")
    anew = lambda: grant(pool, lease)["epoch"] not in (0, before["epoch"]) or grant(pool, lease)["gpu"] not in ("", before["gpu"])
    kit.until(pool.logs, lambda: anew() and is_plugged(pool, lease), 60)
    kit.hold(grant(pool, lease)["gpu"] == before["gpu"] and read(pool, before) == data, "its own disk, as it was", grant(pool, lease))
    gone(pool, lease)


def manager_killed(pool, _):
    lease = create(pool, "--wait")
    before = grant(pool, lease)
    pool.manager.send_signal(signal.SIGKILL)
    pool.manager.wait()
    pool.start_manager()
    kit.until(pool.logs, lambda: pool.json("host", "ls")[0]["state"] == "ready", 30)
    kit.hold(grant(pool, lease) == before, grant(pool, lease), before)
    gone(pool, lease)


def box_killed(pool, here):
    lease = create(pool, "--wait")
    before = grant(pool, lease)
    here.kill(before["gpu"].split("/")[0])
    moved = lambda: grant(pool, lease)["gpu"] not in ("", before["gpu"]) and is_plugged(pool, lease)
    kit.until(pool.logs, moved, 60)
    kit.hold(grant(pool, lease)["attachment"]["slot"] == before["attachment"]["slot"], "the same slot")
    gone(pool, lease)
