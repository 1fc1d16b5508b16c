"""Leases with shares in the parts of one GPU: four at once, each with a worker, memory and a cleaning of its own."""
import contextlib
import glob
import json
import os
import signal
import subprocess
import sys

import kit
from pool import Pool
from story_guest import children, processes_of
from story_sharing import Program

PART = 256 << 20
SHARE = ("--share", "250,256MiB")
SLOTS = [f"shared/{slot}" for slot in range(4)]
# Says what it gets of the memory and what not, and keeps it until its input ends.
MEMORY = os.path.join(kit.HERE, "programs", "takes_memory.py")


def tell(record):
    pages = lambda: set(glob.glob(f"/dev/shm/dxpu-{os.getuid()}-*"))
    before = pages()
    with Pool() as pool:
        box = pool.box("shared", "--soft", "1", "--memory", "1GiB", "--shares", "4")
        kit.until(lambda: f"four parts of a GPU: {pool.logs()}", lambda: set(pool.gpus()) == set(SLOTS), 60)
        pool.all_free()
        record.part("the parts of a GPU are shown as what they are", shown, pool)
        record.part("four leases have their own memory on one GPU and no more", quotas, pool)
        record.part("a fifth waits and is told why; one is killed, and its part is cleaned and lent again", fifth, pool)
        record.part("two leases have time in proportion to their shares", turns, pool)
        record.part("a worker is killed, and the leases on other parts notice nothing", worker_dies, pool)
        record.part("the agent is killed, and the next one finds the workers of all parts", agent_dies, pool, box)
        record.part("what no part can serve is refused in words", refused, pool)
        record.part("a GPU that breaks breaks in all its parts, and comes back in all of them", breaks, pool)
        record.part("a GPU that is lent as a whole again has no lease on a part any more", whole_again, pool, box)
    for path in pages() - before:
        os.remove(path)


def shown(pool):
    gpus = pool.gpus()
    kit.hold(all(gpus[slot]["part"] == {"of": 0, "milli": 250} for slot in SLOTS), "they are no parts:", gpus)
    kit.hold(all(gpus[slot]["memory_bytes"] == PART for slot in SLOTS), "other memory:", gpus)
    kit.hold(len({gpus[slot]["uuid"] for slot in SLOTS}) == 1, "they are not of one GPU:", gpus)
    listed = pool.ask("gpu", "ls").stdout
    kit.hold(listed.count("250/1000 of GPU 0") == 4, "gpu ls does not show parts:", listed)
    status = pool.ask("status").stdout
    kit.hold("1 of 1 soft free in parts" in status, "status does not show parts:", status)


def run(pool, share=SHARE):
    return Program(pool, "offline", "dedicated", "--gpus", "1", *share)


def quotas(pool):
    command = [kit.dxpu, "run", "--gpus", "1", *SHARE, "--", sys.executable, MEMORY, "9", "2", "keep"]
    environment = pool.environment | {"DXPU_CREDENTIAL": pool.borrower}
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    four = [subprocess.Popen(command, env=environment, text=True, **pipes) for _ in range(4)]
    try:
        for program in four:
            seen = json.loads(program.stdout.readline() or "{}")
            kit.hold(seen.get("codes") == [0, 0, 0, 0] and seen["total"] == PART, "it sees", seen)
            kit.hold(seen["taken"] == [0, 2], "it gets more than it has, or less:", seen)
        places = sorted(grant["gpu"] for lease in pool.live_leases() for grant in lease["grants"])
        kit.hold(places == SLOTS, "they are elsewhere:", places)
    finally:
        for program in four:
            with contextlib.suppress(OSError):
                program.stdin.close()
            program.wait(60)
            program.stdout.close()
            program.stderr.close()
    pool.all_free()


def fifth(pool):
    with contextlib.ExitStack() as stack:
        four = [stack.enter_context(run(pool)) for _ in range(4)]
        for program in four:
            program.order(do="offline", work="product", seconds=20)
        asked = pool.ask("lease", "create", *SHARE, "--tenant", "stories", "--ttl", "2m", "-o", "json")
        kit.hold(asked.returncode == 0, "no lease:", asked.stdout, asked.stderr)
        waits = json.loads(asked.stdout)["id"]
        kit.hold(pool.leases()[waits]["state"] == "pending", "there is a fifth part:", pool.leases()[waits])
        why = pool.ask("lease", "explain", waits).stdout
        kit.hold("wanted parts of GPUs with at least 250/1000" in why and "4 leased" in why, "it is not told why:", why)
        epochs = {slot: gpu["epoch"] for slot, gpu in pool.gpus().items()}
        for pid in children(four[0].process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        four[0].process.wait(60)
        kit.until(lambda: f"the part is lent again: {pool.leases()[waits]}", lambda: pool.leases()[waits]["state"] == "granted", 60)
        slot = pool.leases()[waits]["grants"][0]["gpu"]
        gpus = pool.gpus()
        # It was cleaned before: the epoch of the lease that was killed is over.
        kit.hold(gpus[slot]["epoch"] > epochs[slot] and gpus[slot]["cleaned_epoch"] >= epochs[slot], "it was not cleaned:", gpus[slot])
        kit.hold(all(gpus[other]["epoch"] == epochs[other] for other in SLOTS if other != slot), "others were disturbed:", gpus)
        for program in four[1:]:
            kit.hold(len(program.answer()["ends"]) > 2, "one of the others did nothing")
        kit.hold(pool.ask("lease", "release", waits).returncode == 0, "it stays:", pool.last.stderr)
    pool.all_free()


def worker_dies(pool):
    with Program(pool, "busy", "dedicated", "--gpus", "1", *SHARE) as victim:
        (slot,) = [grant["gpu"] for lease in pool.live_leases() for grant in lease["grants"]]
        with run(pool) as other:
            other.order(do="offline", work="product", seconds=10)
            worker, _ = processes_of(pool, slot.split("/")[1])
            os.kill(worker, signal.SIGKILL)
            kit.until("a program hears that its worker was killed", lambda: victim.process.poll() is not None, 60)
            kit.hold(victim.process.returncode != 0, "its worker was killed and it ended well")
            kit.hold(len(other.answer()["ends"]) > 2, "the other one did nothing")
    pool.all_free(60)


def turns(pool):
    with run(pool) as more, run(pool, ("--share", "50,256MiB")) as less:
        for program in (more, less):
            program.order(do="offline", work="product", seconds=6)
        counts = [len(program.answer()["ends"]) for program in (more, less)]
    # Five to one; other programs of this machine take time from either.
    kit.hold(counts[0] > 2 * counts[1] > 0, "shares of 250 and 50 gave", counts)
    pool.all_free()


def agent_dies(pool, box):
    with run(pool) as program:
        program.order(do="offline", work="product", seconds=8)
        workers = [box.worker(slot) for slot in range(4)]
        kit.hold(all(workers), "a part has no worker:", workers)
        box.kill_agent()
        before = box.log().count("a worker is taken over")
        box.start()
        kit.until("four workers are taken over", lambda: box.log().count("a worker is taken over") == before + 4, 20)
        kit.hold(len(program.answer()["ends"]) > 2, "it did nothing")
        kit.hold([box.worker(slot) for slot in range(4)] == workers, "there are other workers than", workers)
    pool.all_free()


def whole_again(pool, box):
    with Program(pool, "busy", "dedicated", "--gpus", "1", *SHARE) as program:
        (lease,) = pool.live_leases()
        box.kill_agent()
        box.options = (*box.options[:-1], "1")
        box.start()
        kit.until("it hears that its part is gone", lambda: program.process.poll() is not None, 60)
    kit.until(lambda: f"one whole GPU: {pool.gpus()}", lambda: pool.gpus()["shared/0"].get("part") is None, 60)
    kit.until("its lease is over", lambda: lease["id"] not in {other["id"] for other in pool.live_leases()}, 60)
    states = lambda: {slot: gpu["state"] for slot, gpu in pool.gpus().items()}
    expected = {"shared/0": "free", **dict.fromkeys(SLOTS[1:], "absent")}
    kit.until(lambda: f"the GPU is free, and its parts are gone: {states()}", lambda: states() == expected, 60)
    result = pool.ask("run", "--gpus", "1", "--", "true", credential=pool.borrower)
    kit.hold(result.returncode == 0, "it is not lent as a whole:", result.stderr)


def refused(pool):
    for options, words in (
        (("--gpus", "1"), "in parts alone"),
        (("--gpus", "1", "--class", "online"), "in parts alone"),
        (("--gpus", "1", "--share", "500,1MiB"), "the largest part has 250/1000"),
        (("--gpus", "1", "--share", "100,512MiB"), "the largest part has 250/1000"),
    ):
        result = pool.ask("run", *options, "--", "true", credential=pool.borrower)
        kit.hold(result.returncode != 0, options, "was granted")
        kit.hold(words in result.stderr, options, "was refused with:", result.stderr)


def breaks(pool):
    states = lambda: {slot: gpu["state"] for slot, gpu in pool.gpus().items()}
    state = ("--state-dir", pool.file("shared"))
    kit.hold(pool.ask("box", "break", "1", *state).returncode == 0, "it is not broken:", pool.last.stderr)
    kit.until(lambda: f"all parts are bad: {states()}", lambda: set(states().values()) == {"bad"}, 40)
    kit.hold(pool.ask("box", "heal", "1", *state).returncode == 0, "it is not healed:", pool.last.stderr)
    kit.hold(pool.ask("gpu", "repair", "shared/2").returncode == 0, "it is not repaired:", pool.last.stderr)
    pool.all_free(120)
