"""Programs of a pool that outlive what happens to it: moved, suspended, their workers, boxes, guardians and managers killed."""
import os
import random
import signal
import time

import kit
from pool import Pool

ROUNDS = int(os.environ.get("MOVE_ROUNDS", "400"))
LONG_ROUNDS = 4 * ROUNDS
KILLS = int(os.environ.get("MOVE_KILLS", "12"))
random_source = random.Random(20261116)


def tell(record):
    with Pool() as pool:
        boxes = [pool.box(name, "--soft", "2", "--memory", "512MiB", "--guard-memory", "1GiB") for name in ("first", "second")]
        kit.until(lambda: f"four GPUs: {pool.ask('gpu', 'ls').stdout}\n{pool.logs()}", lambda: len(pool.gpus()) == 4, 60)
        pool.all_free()
        record.part("a lease moves to the other box and back while its program works", moved, pool)
        record.part("a box is drained: the program goes on at the other one", drained, pool)
        record.part("a program is suspended, its GPU is free, and it comes back", suspended, pool)
        record.part("a GPU breaks while the program works", broken, pool, boxes)
        record.part(f"sessions, workers, guardians, agents and the manager are killed, {KILLS} times", killed, pool, boxes)
        record.part("guardians keep nothing of leases that have ended", emptied, pool)


def start(pool, rounds=ROUNDS):
    # The lease of a part that failed may still be there.
    kit.until(lambda: f"leases end: {pool.live_leases()}", lambda: not pool.live_leases(), 40)
    client = pool.borrow(kit.program("load"), 2, rounds, options=("--survive",))
    client.wait_for("working")
    [lease] = pool.live_leases()
    return client, lease["id"]


def place(pool, lease):
    """Where it is; empty once it has ended or while it waits."""
    grants = pool.leases().get(lease, {}).get("grants") or [{"gpu": ""}]
    return grants[0]["gpu"]


def safe_cut(pool, lease):
    """The number of the program's last safe cut; 0 if a loss would not be survived."""
    links = pool.json("lease", "show", lease).get("protection", {}).get("links", [])
    return min((link["cut"] for link in links if link["state"] == "protected"), default=0)


def ends_well(client):
    client.ends(0)
    kit.hold("all right" in client.said(), client.said())


def moved(pool):
    client, lease = start(pool)
    with client:
        places = [place(pool, lease)]
        for _ in range(2):
            there = "second" if places[-1].startswith("first") else "first"
            result = pool.ask("lease", "move", lease, "--to", there)
            kit.hold(result.returncode == 0, "the move was refused:", result.stdout, result.stderr, client.said())
            kit.until(lambda: f"it is at {there}: {place(pool, lease)} {client.said()}", lambda: place(pool, lease).startswith(there), 40)
            places.append(place(pool, lease))
        ends_well(client)
    pool.all_free()
    return " to ".join(places)


def drained(pool):
    client, lease = start(pool)
    with client:
        here = place(pool, lease).split("/")[0]
        kit.hold(pool.ask("box", "drain", here, "--reason", "story").returncode == 0, pool.last.stderr)
        kit.until(lambda: f"it left {here}: {place(pool, lease)} {client.said()}", lambda: not place(pool, lease).startswith(here), 40)
        ends_well(client)
    kit.hold(pool.ask("box", "undrain", here).returncode == 0, pool.last.stderr)
    pool.all_free()


def suspended(pool):
    client, lease = start(pool)
    with client:
        # A program that stands still for no cut just now is not suspended, and says so; then it is asked again.
        kit.until(lambda: f"it is suspended: {pool.last.stderr}", lambda: pool.ask("lease", "suspend", lease).returncode == 0, 40)
        # The program has work to do, so the next call brings it back at once: parked, then granted again.
        seen = lambda: [event["kind"] for event in pool.json("event", "ls") if event.get("lease") == lease]
        kit.until(lambda: f"it was parked: {seen()} {client.said()}", lambda: "lease_parked" in seen(), 40)
        kit.until(lambda: f"it is back: {seen()} {client.said()}", lambda: pool.leases()[lease]["state"] == "granted", 40)
        ends_well(client)
    pool.all_free()


def broken(pool, boxes):
    client, lease = start(pool)
    with client:
        gpu = place(pool, lease)
        kit.hold(pool.ask("gpu", "break", gpu).returncode == 0, pool.last.stderr)
        kit.until(lambda: f"it left {gpu}: {place(pool, lease)} {client.said()}", lambda: place(pool, lease) != gpu, 40)
        ends_well(client)
    kit.hold(pool.ask("gpu", "repair", gpu).returncode == 0, pool.last.stderr)
    pool.all_free(60)


def killed(pool, boxes):
    """One program after the other; each sees a death or two of what serves it."""
    deaths = {}
    done = 0
    while done < KILLS:
        client, lease = start(pool, LONG_ROUNDS)
        with client:
            while client.process.poll() is None and done < KILLS:
                time.sleep(0.1 + random_source.random() * 0.4)
                what = random_source.choice(("worker", "guardian", "agent", "manager"))
                if kill(pool, boxes, lease, what):
                    deaths[what] = deaths.get(what, 0) + 1
                    done += 1
                # A GPU whose worker dies three times in a minute is taken for bad.
                for gpu in (gpu["id"] for gpu in pool.gpus().values() if gpu["state"] == "bad"):
                    pool.ask("gpu", "repair", gpu)
            ends_well(client)
    pool.all_free(60)
    return ", ".join(f"{what} {count}" for what, count in sorted(deaths.items()))


def kill(pool, boxes, lease, what):
    """Kills one process that the lease depends on; whether there was one."""
    here = place(pool, lease)
    box = next((box for box in boxes if box.name == here.split("/")[0]), None)
    if not box:
        return False
    if what == "manager":
        pool.managers[0].kill()
        pool.managers[0].start()
        return True
    if what == "agent":
        box.process.kill()
        box.process.wait()
        box.start()
        return True
    pid = box.guardian() if what == "guardian" else box.worker(int(here.split("/")[1]))
    if pid:
        os.kill(pid, signal.SIGKILL)
        recovered(pool, lease)
    return bool(pid)


def recovered(pool, lease):
    """A guardian dies with its images: a program that loses its worker in the same moment is lost, and says so. Here each loss of
    a worker or a guardian comes when the one before is mended: new images are safe, or the program has ended."""
    def is_over():
        return not pool.live_leases()

    def shown():
        return pool.ask("lease", "show", lease, "-o", "json").stdout

    # A keeper tells every second how its program stands. What it tells after two seconds is of the time after the death, but
    # for a cut that was on its way.
    until = time.monotonic() + 2
    kit.until("two seconds pass", lambda: is_over() or time.monotonic() > until)
    before = safe_cut(pool, lease) + 1
    kit.until(lambda: f"a cut after {before} is safe: {shown()}", lambda: is_over() or safe_cut(pool, lease) > before, 40)


def emptied(pool):
    def guards():
        return {name: pool.json("box", "show", name).get("guard") for name in ("first", "second")}

    def is_empty(guard):
        return guard and not guard["leases"] and guard["used_bytes"] == 0

    kit.until(lambda: f"no images are left: {guards()}\n{pool.logs()}", lambda: all(map(is_empty, guards().values())), 30)
