"""Hosts of the PCIe plane: devices of two boxes in the slots of one host, whoever of them is killed. No guest: the slots
are sockets."""
import os
import signal

import kit
import pool_kit


def tell(record):
    with pool_kit.Manager() as pool:
        here = Here(pool)
        record.part("a host that serves nobody: the lease waits and says why", waits, pool, here)
        record.part("plugged in, and taken out", plugged, pool, here)
        record.part("the host is killed, and gets its device anew", host_killed, pool, here)
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


def host_killed(pool, here):
    lease = create(pool, "--wait")
    before = grant(pool, lease)
    here.kill("hv-7")
    here.start("hv-7", "host", "--slots", "2")
    anew = lambda: grant(pool, lease)["epoch"] not in (0, before["epoch"]) or grant(pool, lease)["gpu"] not in ("", before["gpu"])
    kit.until(pool.logs, lambda: anew() and is_plugged(pool, lease), 60)
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
