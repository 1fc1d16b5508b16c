"""Two leases of a pool on one GPU: an online one, and an offline one in the seat for guests beside it."""
import contextlib
import glob
import json
import os
import pathlib
import select
import signal
import sys
import time

import kit

sys.path.append(os.path.join(kit.HERE, "..", "..", "bench", "gpu", "lib"))
import share_page
from pool import Pool
from story_sharing import Program

SEAT, REST = 256 << 20, 768 << 20
# How long the program of a guest with survival may take to leave its seat, in seconds.
GRACE = 8
# GUEST_ROUNDS=100 tests/stories/run ... kills each of them a hundred times.
ROUNDS = int(os.environ.get("GUEST_ROUNDS", "1"))
# Says what it sees of the memory, and what it cannot take.
MEMORY = os.path.join(kit.HERE, "programs", "takes_memory.py")


def tell(record):
    pages = lambda: set(glob.glob(f"/dev/shm/dxpu-{os.getuid()}-*"))
    before = pages()
    with Pool() as pool:
        pool.box("shared", "--soft", "1", "--memory", "1GiB", "--guests", "1", "--guest-memory", "256MiB")
        kit.until(lambda: f"a GPU and its seat: {pool.logs()}", lambda: set(pool.gpus()) == {"shared/0", "shared/32"}, 60)
        pool.all_free()
        record.part("an online and an offline lease work on one GPU", meet, pool)
        record.part("the guest waits for as long as the online program has work", waits, pool)
        record.part("each has its own memory and no more", quotas, pool)
        record.part("the guest's program, session and worker are killed, and the online program notices nothing", kills, pool)
        record.part("the slack of an online lease decides how much of the GPU its guest is given", slack, pool)
        record.part("a dedicated lease has the GPU when the guest has left, and the guest is told", evicted, pool)
        record.part("what offline leases cannot have is refused in words", refused, pool)
    with Pool() as pool:
        options = ("--guests", "1", "--guest-memory", "256MiB", "--guard-memory", "512MiB")
        pool.box("guarded", "--soft", "1", "--memory", "1GiB", *options)
        kit.until(lambda: f"a GPU and its seat: {pool.logs()}", lambda: set(pool.gpus()) == {"guarded/0", "guarded/32"}, 60)
        pool.all_free()
        record.part("a guest with survival is suspended for a dedicated lease, and goes on with the same bits", suspended, pool)
        record.part("a guest that does not hear is evicted in time, waits, and goes on from its last image", unheard, pool)
    # Agents that are killed leave the pages of their GPUs to the next one.
    for path in pages() - before:
        os.remove(path)


def run(pool, role, given_class):
    return Program(pool, role, given_class, "--gpus", "1")


def places(pool):
    return sorted(grant["gpu"] for lease in pool.live_leases() for grant in lease["grants"])


def meet(pool):
    with run(pool, "online", "online") as online, run(pool, "offline", "offline") as offline:
        kit.hold(places(pool) == ["shared/0", "shared/32"], "they are elsewhere:", places(pool))
        offline.order(do="offline", work="product", seconds=2)
        online.order(do="online", gap_us=20_000, seconds=2)
        kit.hold(online.answer()["arrivals"] and len(offline.answer()["ends"]) > 2, "one of them did nothing")
        classes = sorted(lease["request"]["class"] for lease in pool.live_leases())
        kit.hold(classes == ["offline", "online"], "other classes:", classes)
        leave(online), leave(offline)
    pool.all_free()


def leave(program):
    program.process.stdin.close()
    program.process.wait(30)


def waits(pool):
    with run(pool, "endless", "online") as endless, run(pool, "offline", "offline") as offline:
        endless.order()
        # The kernel has begun when the gate is closed: a step of the guest that began before it may still end.
        offline.order(do="offline", work="product", seconds=1)
        said = lambda seconds: select.select([offline.process.stdout], [], [], seconds)[0]
        if said(2):
            offline.answer()
            offline.order(do="offline", work="product", seconds=1)
        kit.hold(not said(3), "the guest worked while the online program had work")
        endless.process.send_signal(signal.SIGTERM)
        endless.process.wait(30)
        kit.hold(said(30), "the guest still waits though no program has work")
        offline.answer()
        leave(offline)
    pool.all_free()


def quotas(pool):
    for given_class, total in (("offline", SEAT), ("online", REST), ("dedicated", SEAT + REST)):
        options = () if given_class == "dedicated" else ("--class", given_class)
        said = pool.must(sys.executable, MEMORY, "7", "4", options=options)
        seen = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
        kit.hold(seen["codes"] == [0, 0, 0, 0] and seen["total"] == total, given_class, "sees", seen, "and not", total)
        kit.hold(seen["taken"] == [0, 2], given_class, "gets more than it has:", seen)
    pool.all_free()


def slack(pool):
    """What the online session orders is in the page of its GPU: groups of offline work are 50 us long at first."""
    first_us, told = 50, {}
    for percent in ("1", "1000"):
        with Program(pool, "online", "online", "--gpus", "1", "--slack", percent) as online, run(pool, "offline", "offline") as offline:
            online.order(do="online", gap_us=4_000, seconds=600, stop=True)
            offline.order(do="offline", work="product", seconds=600, stop=True)
            groups = lambda: [seen["group_us"] for seen in map(look, glob.glob(f"/dev/shm/dxpu-{os.getuid()}-*")) if seen["online"]]
            is_short = lambda: any(us and us < first_us for us in groups())
            if percent == "1":
                kit.until(lambda: f"groups are shorter than {first_us} us: {groups()}", is_short, 60)
            else:
                ends = time.monotonic() + 15
                while time.monotonic() < ends:
                    kit.hold(not is_short(), "the guest is given less, within a slack of", percent, "%:", groups())
                    time.sleep(0.1)
            told[percent] = groups()
            for program in (offline, online):
                program.order(do="stop")
                program.answer()
                leave(program)
        pool.all_free()
    return f"groups of us, by slack in percent: {told}"


def look(path):
    return share_page.Page(path).look()


def processes_of(pool, slot, box="shared"):
    """The worker of a slot and its sessions: the worker leads their group."""
    worker, directory = None, pool.file(f"{box}/slot-{slot}").encode()
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            with open(path, "rb") as file:
                words = file.read().split(b"\0")
            if words[1:2] == [b"worker"] and directory in words:
                worker = int(path.split("/")[2])
    kit.hold(worker, "there is no worker of slot", slot)
    group = [int(path.split("/")[2]) for path in glob.glob("/proc/[0-9]*/stat") if group_of(path) == worker]
    return worker, [pid for pid in group if pid != worker]


def group_of(path):
    with contextlib.suppress(OSError):
        with open(path) as file:
            return int(file.read().rsplit(")", 1)[1].split()[2])
    return None


def kills(pool):
    with run(pool, "online", "online") as online:
        online.order(do="online", gap_us=10_000, seconds=600, stop=True)
        for victim in ("program", "sessions", "worker") * ROUNDS:
            with run(pool, "busy", "offline") as busy:
                kit.hold("shared/32" in places(pool), "the guest has no seat:", places(pool))
                worker, sessions = processes_of(pool, 32)
                killed = {"program": children(busy.process.pid), "sessions": sessions, "worker": [worker]}[victim]
                kit.hold(killed, "there is no process to kill:", victim)
                for pid in killed:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                kit.until(lambda: f"the program hears that its {victim} was killed", lambda: busy.process.poll() is not None, 60)
                kit.hold(busy.process.returncode != 0, "its", victim, "was killed and it ended well")
            kit.until(lambda: f"the seat comes back: {pool.gpus()['shared/32']}", lambda: comes_back(pool, "shared/32"), 60)
        online.order(do="stop")
        kit.hold(len(online.answer()["arrivals"]) > 10, "few requests")
        leave(online)
    pool.all_free()


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def comes_back(pool, name):
    """A seat whose worker died several times in a minute is bad until an operator says otherwise."""
    if ROUNDS > 1 and pool.gpus()[name]["state"] == "bad":
        pool.ask("gpu", "repair", name)
    return free(pool, name)


def free(pool, name):
    gpu = pool.gpus()[name]
    return gpu["state"] == "free" and not gpu.get("unready")


def create(pool, given_class, *options):
    result = pool.ask("lease", "create", "--class", given_class, "--tenant", "stories", "-o", "json", *options)
    kit.hold(result.returncode == 0, "no lease:", result.stdout, result.stderr)
    return json.loads(result.stdout)["id"]


def evicted(pool):
    guest = create(pool, "offline", "--wait")
    whole = create(pool, "dedicated", "--wait")
    gpus, told = pool.gpus(), pool.leases()[guest]
    kit.hold([holder["lease"] for holder in gpus["shared/0"]["holders"]] == [whole], "another lease has it:", gpus)
    kit.hold(gpus["shared/0"]["holders"][0]["memory_bytes"] == SEAT + REST, "it has not all of it:", gpus)
    kit.hold(told["state"] == "pending" and "needed as a whole" in told["moves"][-1]["reason"], "the guest was not told:", told)
    why = pool.ask("lease", "explain", guest)
    kit.hold("no seat for guests is free" in why.stdout, "it is not explained:", why.stdout, why.stderr)
    kit.hold(pool.ask("lease", "release", whole).returncode == 0, "it stays:", pool.last.stderr)
    kit.until(lambda: f"the guest has its seat again: {pool.leases()[guest]}", lambda: pool.leases()[guest]["state"] == "granted", 40)
    kit.hold(pool.ask("lease", "release", guest).returncode == 0, "it stays:", pool.last.stderr)
    pool.all_free()


def refused(pool):
    for options, words in (
        (("--gpus", "2", "--class", "offline"), "gpus = 1"),
        (("--gpus", "1", "--class", "offline", "--share", "250,64MiB"), "without share"),
        (("--gpus", "1", "--class", "offline", "--memory", "512MiB"), "512 MiB"),
    ):
        result = pool.ask("run", *options, "--", "true", credential=pool.borrower)
        kit.hold(result.returncode != 0, options, "was granted")
        kit.hold(words in result.stderr or "GiB of memory" in result.stderr, options, "was refused with:", result.stderr)


def chain(pool, *words):
    """A program whose every step needs the one before, in the seat for guests, with survival."""
    return pool.borrow(kit.program("chain"), *words, options=("--class", "offline", "--survive"))


def result(client):
    """How many steps it did, and its digest."""
    client.ends(0, 120)
    said = dict(line.split() for line in client.said().splitlines() if line.startswith(("steps ", "digest ")))
    return said["steps"], said["digest"]


def ends_as_undisturbed(pool, client, stop):
    """The program has done enough; another one does as many steps without a disturbance."""
    pathlib.Path(stop).touch()
    steps, found = result(client)
    with chain(pool, steps) as undisturbed:
        expected = result(undisturbed)
    kit.hold((steps, found) == expected, "other bits:", found, "and not", expected, client.said())


def guest_lease(pool, client):
    """The program's lease, when a loss would be survived."""
    client.wait_for("working")
    [lease] = [lease["id"] for lease in pool.live_leases() if lease["request"]["class"] == "offline"]
    links = lambda: pool.json("lease", "show", lease).get("protection", {}).get("links", [])
    kit.until(lambda: f"its image is safe: {links()} {client.said()}",
              lambda: links() and all(link["state"] == "protected" and link["cut"] for link in links()), 40)
    return lease


def end(pool, lease):
    kit.hold(pool.ask("lease", "release", lease).returncode == 0, "it stays:", pool.last.stderr)


def suspended(pool):
    stop = pool.file("stop-suspended")
    with chain(pool, 0, stop) as client:
        guest = guest_lease(pool, client)
        for _ in range(2):
            began = time.monotonic()
            whole = create(pool, "dedicated", "--wait")
            waited = time.monotonic() - began
            told = pool.leases()[guest]
            kit.hold(told["state"] == "pending" and "parking" in told, "it was not suspended:", told, client.said())
            kit.hold(told["moves"][-1].get("planned") and "needed as a whole" in told["moves"][-1]["reason"], "it was not told:", told)
            kit.hold(waited < GRACE + 10, "the dedicated lease waited for", waited, "s")
            for command in ("show", "explain"):
                said = pool.ask("lease", command, guest).stdout
                kit.hold("suspended" in said and "needed as a whole" in said and "another seat" in said, command, "does not say it:", said)
            # Its next call waits. It sees no error, and does nothing meanwhile.
            time.sleep(1)
            kit.hold(client.process.poll() is None and "digest" not in client.said(), "it did not wait:", client.said())
            resumes = lambda: client.said().count("the program goes on at")
            before = resumes()
            end(pool, whole)
            kit.until(lambda: f"the guest has its seat again: {pool.leases()[guest]}", lambda: pool.leases()[guest]["state"] == "granted", 40)
            kit.until(lambda: f"the program goes on: {client.said()}", lambda: resumes() > before, 40)
            guest_lease(pool, client)
        ends_as_undisturbed(pool, client, stop)
    pool.all_free()


def unheard(pool):
    """The program is frozen when its seat is needed: it does not hear that it is to be suspended."""
    stop = pool.file("stop-unheard")
    with chain(pool, 0, stop) as client:
        guest = guest_lease(pool, client)
        programs = children(client.pid)
        kit.hold(programs, "`dxpu run` has no program")
        for pid in programs:
            os.kill(pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            asked = create(pool, "dedicated")
            said = pool.ask("lease", "explain", asked).stdout
            kit.hold(f"guest {guest} is asked to leave" in said and "evicted in" in said, "it does not say what it waits for:", said)
            kit.until(lambda: f"it has the GPU: {pool.leases()[asked]}", lambda: pool.leases()[asked]["state"] == "granted", GRACE + 20)
            waited = time.monotonic() - began
            kit.hold(waited > GRACE - 2, "it did not wait for the guest:", waited)
        finally:
            for pid in programs:
                os.kill(pid, signal.SIGCONT)
        told = pool.leases()[guest]
        kit.hold(told["state"] == "pending" and "parking" not in told, "it was not evicted:", told)
        time.sleep(3)
        kit.hold(client.process.poll() is None, "it did not wait:", client.said())
        end(pool, asked)
        kit.until(lambda: f"the guest has its seat again: {pool.leases()[guest]}", lambda: pool.leases()[guest]["state"] == "granted", 40)
        ends_as_undisturbed(pool, client, stop)
    pool.all_free()
    return f"the dedicated lease waited for {waited:.1f} s"
