"""A GPU whose memory is promised twice: an online program has what a guest has when it needs it, and the guest goes on later."""
import contextlib
import glob
import json
import os
import pathlib
import signal
import sys
import time

import kit
from ordered import Ordered
from pool import Pool
from story_guest import children, end, guest_lease, processes_of, result

ALL, SEAT = 1 << 30, 256 << 20
# The longest that an allocation of an online program waits, in seconds, and what a busy machine may add.
PATIENCE, LATE = 15, 10
# What the guests here hold, and with that in use an online program needs more than is left, in MiB.
HELD, MOST, MORE = 180, 700, 280
MEMORY = os.path.join(kit.HERE, "programs", "holds_memory.py")
SEATS = ("--soft", "1", "--memory", "1GiB", "--guests", "1", "--guest-memory", "256MiB", "--overcommit")


def tell(record):
    pages = lambda: set(glob.glob(f"/dev/shm/dxpu-{os.getuid()}-*"))
    before = pages()
    with seated() as pool:
        record.part("an online lease has all memory beside a guest, and a guest has no more than is free", both, pool)
        record.part("a guest leaves when the online program needs its memory, and the seat is free again later", evicted, pool)
    with seated() as pool:
        record.part("a guest that is killed while the online program waits does not keep its memory", killed, pool)
    with seated("--guard-memory", "1GiB") as pool:
        record.part("a guest with survival is suspended for memory, and goes on later with the same bits", suspended, pool)
    with seated("--guard-memory", "1GiB") as pool:
        record.part("a guest that is frozen is evicted, and the online program has the memory in time", frozen, pool)
    for path in pages() - before:
        os.remove(path)


@contextlib.contextmanager
def seated(*options):
    with Pool() as pool:
        pool.box("box", *SEATS, *options)
        kit.until(lambda: f"a GPU and its seat: {pool.logs()}", lambda: set(pool.gpus()) == {"box/0", "box/32"}, 60)
        pool.all_free()
        yield pool


class Holder(Ordered):
    """holds_memory.py with a lease of a class."""

    ENDS_WITHIN_SECONDS = 5

    def __init__(self, pool, given_class, *options):
        command = [kit.dxpu, "run", "--gpus", "1", "--class", given_class, *options, "--", sys.executable, MEMORY]
        super().__init__(command, pool.environment | {"DXPU_CREDENTIAL": pool.borrower})
        self.seen = json.loads(self.first or "null")

    def __enter__(self):
        kit.hold(self.seen, "it does not begin")
        return self

    def answer(self):
        answer = super().answer()
        return answer["code"], answer["seconds"]

    def does(self, do, **more):
        self.order(do=do, **more)
        return self.answer()

    def takes(self, mib):
        code, seconds = self.does("take", mib=mib)
        kit.hold(code == 0, "it has no", mib, "MiB:", code, "after", seconds, "s")
        return seconds

    def holds_its_bits(self):
        kit.hold(self.does("check")[0] == 0, "its memory has other bytes")


def seat(pool):
    return pool.gpus()["box/32"]


def both(pool):
    with Holder(pool, "online") as online, Holder(pool, "offline") as guest:
        kit.hold((online.seen["total"], guest.seen["total"]) == (ALL, SEAT), "other totals:", online.seen, guest.seen)
        gpus = pool.gpus()
        memory = [gpus[name]["holders"][0]["memory_bytes"] for name in ("box/0", "box/32")]
        kit.hold(memory == [ALL, SEAT] and gpus["box/32"]["guest"]["overcommit"], "the pool says otherwise:", gpus)
        classes = {lease["request"]["class"]: lease["id"] for lease in pool.live_leases()}
        for given_class, words in (("online", "promised to a guest, too"), ("offline", "promised twice")):
            said = pool.ask("lease", "explain", classes[given_class]).stdout
            kit.hold(words in said, "the", given_class, "lease is not told:", said)
        kit.hold("promised twice" in pool.ask("gpu", "ls").stdout, "gpu ls does not say it:", pool.last.stdout)
        online.takes(MOST)
        guest.takes(HELD // 2)
        online.takes(150)
        # Its seat has so much, but the online program has it.
        code, seconds = guest.does("take", mib=140)
        kit.hold(code == 2 and seconds < 5, "the guest hears", code, "after", seconds, "s")
        # What no guest has is not waited for.
        code, seconds = online.does("take", mib=2048)
        kit.hold(code == 2 and seconds < 5, "beyond its lease it hears", code, "after", seconds, "s")
        online.holds_its_bits(), guest.holds_its_bits()
    pool.all_free(80)


def evicted(pool):
    with Holder(pool, "online") as online:
        with Holder(pool, "offline") as guest:
            online.takes(MOST)
            guest.takes(HELD)
            [lease] = [lease["id"] for lease in pool.live_leases() if lease["request"]["class"] == "offline"]
            waited = online.takes(MORE)
            kit.hold(waited < PATIENCE, "it waited for", waited, "s")
            online.holds_its_bits()
            told = pool.leases()[lease]
            kit.hold(any("needs the memory" in moved["reason"] for moved in told["moves"]), "the guest was not told:", told)
            kit.until("the guest's program hears of it", lambda: guest.process.poll() is not None or guest_fails(guest), 60)
        kit.until(lambda: f"the seat is empty: {seat(pool)}", lambda: seat(pool)["state"] == "free", 60)
        # Its new worker gets ready first.
        kit.until(lambda: f"the seat says why: {seat(pool)}", lambda: "needs the memory" in seat(pool).get("unready", ""))
        freed = time.monotonic()
        for _ in range(2):
            kit.hold(online.does("give")[0] == 0, "it cannot free")
        kit.until(lambda: f"the seat takes guests again: {seat(pool)}", lambda: not seat(pool).get("unready"), 90)
        quiet = time.monotonic() - freed
        kit.hold(quiet > 20, "it took a guest after", quiet, "s")
        with Holder(pool, "offline") as guest:
            guest.takes(HELD)
            online.takes(MOST)
            guest.holds_its_bits()
    pool.all_free(80)
    return f"an allocation waited for {waited:.1f} s"


def guest_fails(guest):
    """A program without a call to make hears nothing; this one makes one."""
    with contextlib.suppress(OSError, ValueError, kit.Wrong):
        return guest.does("check")[0] != 0
    return True


def killed(pool):
    waits = []
    with Holder(pool, "online") as online:
        with Holder(pool, "offline") as guest:
            online.takes(MOST)
            guest.takes(HELD)
            _, sessions = processes_of_box(pool)
            online.order(do="take", mib=MORE)
            for pid in children(guest.process.pid) + sessions:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            code, seconds = online.answer()
            kit.hold(code == 0 and seconds < PATIENCE + LATE, "it hears", code, "after", seconds, "s")
            waits.append(seconds)
            online.holds_its_bits()
    pool.all_free(80)
    return f"an allocation waited for {waits[0]:.1f} s"


def processes_of_box(pool):
    return processes_of(pool, 32, "box")


def chain(pool, *words):
    return pool.borrow(kit.program("chain"), *words, options=("--class", "offline", "--survive"))


def ends_as_undisturbed(pool, client, stop):
    pathlib.Path(stop).touch()
    steps, found = result(client)
    with chain(pool, steps, "-", HELD) as undisturbed:
        expected = result(undisturbed)
    kit.hold((steps, found) == expected, "other bits:", found, "and not", expected, client.said())


def suspended(pool):
    stop = pool.file("stop-suspended")
    with chain(pool, 0, stop, HELD) as client, Holder(pool, "online") as online:
        guest = guest_lease(pool, client)
        online.takes(MOST)
        waited = online.takes(MORE)
        kit.hold(waited < PATIENCE, "it waited for", waited, "s")
        online.holds_its_bits()
        told = pool.leases()[guest]
        kit.hold(told["state"] == "pending" and "parking" in told, "it was not suspended:", told, client.said())
        kit.hold("needs the memory" in told["moves"][-1]["reason"], "it was not told:", told)
        time.sleep(2)
        kit.hold(client.process.poll() is None and "digest" not in client.said(), "it did not wait:", client.said())
        before = client.said().count("the program goes on at")
        for _ in range(2):
            kit.hold(online.does("give")[0] == 0, "it cannot free")
        kit.until(lambda: f"the guest has its seat again: {pool.leases()[guest]} {seat(pool)}",
                  lambda: pool.leases()[guest]["state"] == "granted", 90)
        kit.until(lambda: f"the program goes on: {client.said()}", lambda: client.said().count("the program goes on at") > before, 40)
        online.takes(MOST)
        ends_as_undisturbed(pool, client, stop)
        online.holds_its_bits()
    pool.all_free(80)
    return f"an allocation waited for {waited:.1f} s"


def frozen(pool):
    """The guest's program, its session and the worker of its seat do nothing any more."""
    with chain(pool, 0, pool.file("stop-frozen"), HELD) as client, Holder(pool, "online") as online:
        guest = guest_lease(pool, client)
        online.takes(MOST)
        worker, sessions = processes_of_box(pool)
        still = [*children(client.pid), *sessions, worker]
        for pid in still:
            os.kill(pid, signal.SIGSTOP)
        try:
            code, seconds = online.does("take", mib=MORE)
        finally:
            for pid in still:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        kit.hold(code == 0 and seconds < PATIENCE + LATE, "it hears", code, "after", seconds, "s")
        online.holds_its_bits()
        kit.hold(pool.leases()[guest]["state"] == "pending", "it was not evicted:", pool.leases()[guest])
        end(pool, guest)
    pool.all_free(80)
    return f"an allocation waited for {seconds:.1f} s"
