"""CuPy trains on soft GPUs while what serves it is killed and frozen: the losses are those of an undisturbed run, to the last bit.

`SURVIVE_KILLS=100` says how often, `SURVIVE_DEATHS=box,manager` what dies.
"""
import os
import random
import re
import signal
import time

import kit
from pool import Pool
from story_newcomer import PYTHON

PROGRAM = os.path.join(kit.HERE, "programs", "train.py")
KILLS = int(os.environ.get("SURVIVE_KILLS", "6"))
# Each kind in turn, so that a short run has one of each.
DEATHS = os.environ["SURVIVE_DEATHS"].split(",") if "SURVIVE_DEATHS" in os.environ else ("session", "worker", "guardian", "frozen session", "box", "manager", "agent", "frozen worker", "frozen guardian", "frozen manager")
FROZEN_SECONDS = 3
random_source = random.Random(20261116)


def tell(record):
    with Pool() as pool:
        ports = {name: kit.free_port() for name in ("first", "second")}
        for name, other in (("first", "second"), ("second", "first")):
            pool.box(
                name, "--soft", "2", "--memory", "512MiB", "--guard-memory", "1GiB", "--guard-port", str(ports[name]),
                "--guard-copy-to", f"tls:127.0.0.1:{ports[other]}/{other}.box.dxpu",
                "--guard-disk", disk(pool, name), "--guard-disk-after", "1s",
            )
        kit.until(lambda: f"four GPUs: {pool.ask('gpu', 'ls').stdout}\n{pool.logs()}", lambda: len(pool.gpus()) == 4, 60)
        pool.all_free()
        record.part("the images of a program reach the second box: level 2", second_level, pool)
        record.part("a drill finds no difference, and the program goes on", drilled, pool)
        record.part("a suspended program's image goes to disk, outlives its guardian, comes back, and leaves nothing behind", on_disk, pool)
        record.part(f"CuPy trains while what serves it dies, {KILLS} times: losses equal to the last bit", trained, pool)


def disk(pool, name):
    return pool.file(f"{name}-disk")


class Training:
    """A program that trains until it is told how many steps are enough."""

    number = 0

    def __init__(self, pool, survives=True):
        Training.number += 1
        self.stop_file, self.pause_file = (pool.file(f"{word}-{Training.number}") for word in ("stop", "pause"))
        options = ("--survive",) if survives else ()
        self.client = pool.borrow(PYTHON, PROGRAM, self.stop_file, self.pause_file, options=options)
        self.client.wait_for("working", 300)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.__exit__()

    def steps(self):
        """How many steps it has made, by its own word."""
        return max((int(number) for number in re.findall(r"^step (\d+)$", self.client.said(), re.M)), default=1)

    def stop(self, steps):
        with open(self.stop_file + ".new", "w") as file:
            file.write(str(steps))
        os.rename(self.stop_file + ".new", self.stop_file)

    def results(self):
        """The losses and the weights, when it has ended."""
        self.client.ends(0, 600)
        return [line for line in self.client.said().splitlines() if line.startswith(("loss ", "weights "))]


def lease_of(pool):
    [lease] = pool.live_leases()
    return lease["id"]


def links(pool, lease):
    result = pool.ask("lease", "show", lease, "-o", "json")
    return [] if result.returncode else pool.json("lease", "show", lease).get("protection", {}).get("links", [])


def is_safe(pool, lease, after=0):
    """Whether two boxes have an image that is younger than cut `after`."""
    found = links(pool, lease)
    return bool(found) and all(link["state"] == "protected" and link["level"] == 2 and link["cut"] > after for link in found)


def newest_cut(pool, lease):
    return max((link["cut"] for link in links(pool, lease)), default=0)


def second_level(pool):
    with Training(pool) as training:
        lease = lease_of(pool)
        kit.until(lambda: f"two boxes have it: {links(pool, lease)} {pool.logs()}", lambda: is_safe(pool, lease), 60)
        shown = pool.ask("lease", "show", lease).stdout
        kit.hold("level" in shown and "boxes have it" in shown or "one box has it" in shown, shown)
        training.stop(training.steps() + 20)
        training.results()
    pool.all_free()


def drilled(pool):
    with Training(pool) as training:
        lease = lease_of(pool)
        kit.until(lambda: f"it is safe: {links(pool, lease)}", lambda: is_safe(pool, lease), 60)
        result = pool.ask("lease", "drill", lease, seconds=120)
        kit.hold(result.returncode == 0 and "without a difference" in result.stdout + result.stderr,
                 "the drill:", result.stdout, result.stderr, training.client.said(), pool.logs())
        kit.hold("last drill" in pool.ask("lease", "show", lease).stdout, pool.last.stdout)
        training.stop(training.steps() + 40)
        disturbed = training.results()
    pool.all_free()
    compare(pool, disturbed)
    return re.search(r"after (\d+ ms)", result.stdout + result.stderr)[1]


def on_disk(pool):
    def files():
        return [name for box in pool.boxes if os.path.isdir(disk(pool, box.name)) for name in os.listdir(disk(pool, box.name))]

    def guarded():
        return {box.name: (pool.json("box", "show", box.name).get("guard") or {}).get("used_bytes", 0) for box in pool.boxes}

    with Training(pool) as training:
        lease = lease_of(pool)
        kit.until(lambda: f"it is safe: {links(pool, lease)}", lambda: is_safe(pool, lease), 60)
        open(training.pause_file, "w").close()
        # A program that stands still for no cut just now is not suspended, and says so; then it is asked again.
        kit.until(lambda: f"it is suspended: {pool.last.stderr}", lambda: pool.ask("lease", "suspend", lease).returncode == 0, 60)
        kit.until(lambda: f"its image is on disk: {files()} {guarded()} {pool.logs()}", lambda: files() and not any(guarded().values()), 60)
        kept = files()
        kit.hold(all(name.endswith(lease) for name in kept), "files of something else:", kept)
        for box in pool.boxes:
            os.kill(box.guardian(), signal.SIGKILL)
        kit.until("guardians are started again", lambda: all(box.guardian() for box in pool.boxes), 60)
        steps = training.steps()
        os.unlink(training.pause_file)
        kit.until(lambda: f"it goes on: {training.client.said()[-2000:]} {pool.logs()}",
                  lambda: training.steps() > steps or training.client.process.poll() is not None, 120)
        training.stop(training.steps() + 20)
        disturbed = training.results()
    pool.all_free()
    kit.until(lambda: f"nothing is left on disk: {files()} {pool.logs()}", lambda: not files(), 60)
    compare(pool, disturbed)
    return f"{len(kept)} files"


def compare(pool, disturbed):
    """With a run of the same length on GPUs that nothing happens to."""
    steps = len(disturbed) - 1
    with Training(pool, survives=False) as training:
        training.stop(steps)
        undisturbed = training.results()
    kit.hold(len(undisturbed) == steps + 1, "the undisturbed run has", len(undisturbed), "lines, not", steps + 1)
    differing = [pair for pair in zip(undisturbed, disturbed) if pair[0] != pair[1]]
    kit.hold(not differing, "the first of", len(differing), "differences:", differing[:1])
    pool.all_free()


def trained(pool):
    deaths, gaps, misses = {}, [], 0
    with Training(pool) as training:
        lease = lease_of(pool)
        while sum(deaths.values()) < KILLS:
            # Two losses in a row are one too many for an image with two copies: each comes when the one before is mended.
            before = newest_cut(pool, lease)
            kit.until(lambda: f"images are safe after cut {before}: {links(pool, lease)} {training.client.said()[-2000:]}\n{pool.logs()}",
                      lambda: is_safe(pool, lease, before) or training.client.process.poll() is not None, 120)
            kit.hold(training.client.process.poll() is None, "the program ended:", training.client.said()[-4000:])
            time.sleep(random_source.random())
            what = DEATHS[sum(deaths.values()) % len(DEATHS)]
            began = time.monotonic()
            if not strike(pool, lease, what):
                misses += 1
                kit.hold(misses < 50, "there is never a", what, "to strike:", pool.logs())
                continue
            deaths[what] = deaths.get(what, 0) + 1
            steps = training.steps()
            kit.until(lambda: f"it goes on after the {what}: {training.client.said()[-2000:]}\n{pool.logs()}",
                      lambda: training.steps() > steps or training.client.process.poll() is not None, 120)
            gaps.append(time.monotonic() - began)
            mend(pool)
        training.stop(training.steps() + 20)
        disturbed = training.results()
    mend(pool)
    pool.all_free(120)
    compare(pool, disturbed)
    counts = ", ".join(f"{what} {count}" for what, count in sorted(deaths.items()))
    return f"{len(disturbed) - 1} steps equal; {counts}; at most {max(gaps):.1f} s until the next 20 steps were done"


def strike(pool, lease, what):
    """Kills or freezes something that the lease depends on; whether there was something."""
    grants = pool.leases().get(lease, {}).get("grants") or []
    if not grants:
        return False
    name, slot = grants[0]["gpu"].split("/")
    box = next(box for box in pool.boxes if box.name == name)
    frozen, what = what.startswith("frozen "), what.removeprefix("frozen ")
    worker = box.worker(int(slot))
    pids = {
        "session": children(worker) if worker else [],
        "worker": [worker] if worker else [],
        "guardian": [pid for pid in [box.guardian()] if pid],
        "agent": [box.process.pid],
        "box": [box.process.pid, *box.workers(), *(pid for pid in [box.guardian()] if pid)],
        "manager": [pool.managers[0].process.pid],
    }[what]
    if not pids:
        return False
    signal_all(pids, signal.SIGSTOP if frozen else signal.SIGKILL)
    if frozen:
        time.sleep(FROZEN_SECONDS)
        signal_all(pids, signal.SIGCONT)
    return True


def children(pid):
    """The sessions of a worker: its child processes. Not every kernel lists them below /proc/PID."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                # The name of a program may hold blanks and brackets; what follows it may not.
                parent = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found.append(int(name))
    return found


def signal_all(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def mend(pool):
    """Starts again what is gone, and repairs what is taken for bad because its worker died too often."""
    manager = pool.managers[0]
    if manager.process.poll() is not None:
        manager.start()
    for box in pool.boxes:
        if box.process.poll() is not None:
            box.start()
    kit.until("the manager answers", lambda: pool.ask("gpu", "ls").returncode == 0, 60)
    for gpu in pool.gpus().values():
        if gpu["state"] == "bad":
            pool.ask("gpu", "repair", gpu["id"])
