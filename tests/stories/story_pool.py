"""GPUs borrowed from a pool: attached, lost, cleaned and given back, while agents, workers and borrowers die and freeze."""
import json
import contextlib
import os
import random
import re
import signal
import time

import kit
from pool import Pool

ROUNDS = int(os.environ.get("POOL_ROUNDS", "25"))
random_source = random.Random(20261115)


def tell(record):
    with Pool() as pool:
        first = pool.box("first", "--soft", "1", "--memory", "1GiB", "--rack", "r1")
        second = pool.box("second", "--soft", "1", "--memory", "1GiB", "--rack", "r2")
        record.part("two boxes join and their GPUs are free", joined, pool)
        record.part("GPUs of two boxes are devices 0 and 1 of one program", two_boxes, pool, (first, second))
        record.part("a program's end is the command's end, and nothing stays borrowed", ends, pool)
        record.part("smi shows the GPUs of a lease and the program on them, as a table and as JSON", smi, pool)
        record.part("a program is ended at its time limit, in words, and its GPU time is counted", time_limit, pool)
        record.part("no secret is in arguments or in the environment of the agent's workers", no_secrets, pool, first)
        record.part("kill -9 of the borrower: the lease ends by itself", borrower_dies, pool)
        record.part("kill -9 of the agent: the program works on, the next agent takes the worker over", agent_dies, pool, first)
        record.part("kill -9 of a worker: the program hears of it, the same lease comes in again", worker_dies, pool, first)
        record.part("kill -9 of the manager would not disturb a program: frozen for a while it does not", manager_frozen, pool)
        record.part("an old lease stays out", stale, pool, first)
        record.part("a share has the memory it asked for and no more", share, pool)
        record.part("a GPU breaks, the lease moves, the repaired GPU comes back after its burn-in", breaks, pool, (first, second))
        record.part(f"agents, workers, sessions and borrowers killed and frozen, {ROUNDS} times", chaos, pool, (first, second))
        record.part("no slot ever had two leases at once", one_at_a_time, pool, (first, second))


def joined(pool):
    kit.until(lambda: f"two GPUs: {pool.ask('gpu', 'ls').stdout}\n{pool.logs()}", lambda: len(pool.gpus()) == 2, 40)
    pool.all_free()


def two_boxes(pool, boxes):
    with pool.borrow(kit.program("two_workers"), gpus=2) as client:
        client.wait_for("copied")
        [lease] = pool.live_leases()
        names = [grant["gpu"].split("/")[0] for grant in lease["grants"]]
        kit.hold(sorted(names) == ["first", "second"], "the lease has", names)
        lost = next(box for box in boxes if box.name == names[1])
        os.kill(lost.worker(), signal.SIGKILL)
        client.ends(0)
    pool.all_free()


def smi(pool):
    # An empty PATH: nothing of NVIDIA's is asked.
    environment = pool.environment | {"DXPU_CREDENTIAL": pool.borrower, "PATH": ""}
    def look(*words):
        return kit.run_plainly([kit.dxpu, "smi", *words], environment, 30)

    with pool.borrow(kit.program("steady")) as client:
        client.wait_for("working")
        [lease] = pool.live_leases()
        name = lease["grants"][0]["gpu"]
        seen = json.loads(look("--lease", lease["id"], "-o", "json").stdout)
        [gpu], [process] = seen["gpus"], seen["processes"]
        kit.hold(gpu["uuid"] == pool.gpus()[name]["uuid"] and not gpu["lost"], gpu)
        kit.hold(0 < gpu["memory_used_bytes"] < gpu["memory_total_bytes"] == 1 << 30, gpu)
        kit.hold(os.path.basename(process["name"]) == "steady", process)
        table = look("--lease", lease["id"]).stdout
        kit.hold(re.search(r"\|   0  dxpu soft GPU .* [1-9]\d*MiB / 1024MiB ", table) and gpu["uuid"] in table, table)
        kit.hold(re.search(rf"\| +{process['pid']} .*steady", table), table)
        client.process.terminate()
        client.ends(0)
    missing = look()
    kit.hold(missing.returncode == 2 and "dxpu run --gpus 1 -- dxpu smi" in missing.stderr, missing)


def time_limit(pool):
    def usage():
        [found] = [one for one in pool.json("tenant", "usage") if one["tenant"] == "stories"]
        return found["ended_gpu_ms"]["soft"], found["leases_ended"]

    gpu_ms, count = usage()
    with pool.borrow(kit.program("steady"), options=("--time-limit", "1s")) as client:
        client.ends(0, 20)
        kit.hold("dxpu: the time limit is reached; the program is asked to end" in client.said(), client.said())
        kit.hold("rounds" in client.said(), "the program was not asked to end:", client.said())
    kit.until(lambda: f"counted: {usage()}", lambda: usage()[1] == count + 1)
    had = usage()[0] - gpu_ms
    kit.hold(1000 <= had < 8000, "it had its GPU for", had, "ms")
    return f"{had} ms counted"


def ends(pool):
    pool.must("/bin/sh", "-c", "exit 0")
    pool.must("/bin/sh", "-c", "exit 42", code=42)
    pool.must("/bin/sh", "-c", "kill -9 $$", code=137)
    pool.must("/no/such/program", code=127)
    with pool.borrow("/bin/sh", "-c", "trap 'echo heard; exit 5' TERM; echo begun; while :; do sleep 0.05; done") as client:
        client.wait_for("begun")
        client.process.terminate()
        client.ends(5)
        kit.hold("heard" in client.said(), "the signal did not reach the program:", client.said())
    kit.hold(not pool.live_leases(), "leases are left:", pool.live_leases())
    # What this pool can never give is refused at once. A borrower that does not want to wait is told why there is nothing.
    said = pool.must("/bin/true", gpus=3, options=("--wait", "1s"), code=65)
    kit.hold("this pool has 2 at most" in said, said)
    with pool.borrow("/bin/sh", "-c", "echo begun; sleep 60", gpus=2) as client:
        client.wait_for("begun")
        said = pool.must("/bin/true", options=("--wait", "1s"), code=64)
        kit.hold("no GPUs after" in said, said)
        client.process.terminate()
        client.process.wait(kit.HANG_SECONDS)
    pool.all_free()


def no_secrets(pool, box):
    with pool.borrow("/bin/sh", "-c", "echo begun; sleep 60") as client:
        client.wait_for("begun")
        tokens = 0
        for pid in [client.pid, *box.workers()] + descendants(client.pid):
            with open(f"/proc/{pid}/cmdline", "rb") as words, open(f"/proc/{pid}/environ", "rb") as variables:
                shown = words.read() + variables.read()
            kit.hold(b"dxl1." not in shown and b"dxpu-user." not in shown and b"dxpu-join." not in shown, "process", pid, "shows a secret")
            match = re.search(rb"DXPU_TOKEN_FILE=([^\0]+)", shown)
            if match:
                path = match[1].decode()
                kit.hold(os.stat(path).st_mode & 0o077 == 0, path, "is readable by others")
                with open(path) as file:
                    tokens += file.read().startswith("dxl1.")
        kit.hold(tokens, "no process of the program has a token file")
        client.process.terminate()
        client.ends(143)
    pool.all_free()


def descendants(pid):
    found = []
    # Threads and processes may end while we look.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/task/{task}/children") as children:
                for child in children.read().split():
                    found += [int(child), *descendants(int(child))]
    return found


def busy(pool, gpus=1):
    client = pool.borrow(kit.program("load"), 1, 0, gpus=gpus)
    client.wait_for("working")
    return client


def borrower_dies(pool):
    with busy(pool) as client:
        programs = descendants(client.pid)
        client.process.kill()
        # The program is an orphan with a GPU until the lease is over; then it hears of it.
        kit.until("the lease ends by itself", lambda: not pool.live_leases(), 30)
        pool.all_free()
        kit.until("the program ends with its lease", lambda: not any(map(kit.alive, programs)), 20)


def agent_dies(pool, box):
    with busy(pool, gpus=2) as client:
        worker = box.worker()
        box.kill_agent()
        time.sleep(0.5)
        kit.hold(client.process.poll() is None and kit.alive(worker), "the program ended with the agent:", client.said())
        box.start()
        kit.until("the next agent takes the worker over", lambda: "a worker is taken over" in box.log(), 20)
        time.sleep(1.5)
        kit.hold(box.worker() == worker, "the worker was", worker, "and is", box.worker())
        kit.hold(client.process.poll() is None, "the program ended:", client.said())
        client.process.terminate()
        client.ends(143)
    pool.all_free()
    kit.hold(box.worker() != worker, "the worker of an ended lease lives on")


def worker_dies(pool, box):
    script = f"{kit.program('load')} 1 0; echo ended $?; exec {kit.program('load')} 1 2"
    with pool.borrow("/bin/sh", "-c", script, gpus=2) as client:
        client.wait_for("working")
        before = box.epochs()
        # Device 0 is the one the program uses.
        [lease] = pool.live_leases()
        used = next(other for other in pool.boxes if other.name == lease["grants"][0]["gpu"].split("/")[0])
        before = used.epochs()
        os.kill(used.worker(), signal.SIGKILL)
        client.wait_for("ended 7")
        client.ends(0)
        kit.hold(used.epochs()[0] == before[0], "the epoch changed from", before, "to", used.epochs())
    pool.all_free()


def manager_frozen(pool):
    with busy(pool) as client:
        os.kill(pool.manager.pid, signal.SIGSTOP)
        try:
            # Longer than the lease lives, and than a box may be silent: but it was the manager that did not listen.
            time.sleep(9)
            kit.hold(client.process.poll() is None, "the program ended:", client.said())
        finally:
            os.kill(pool.manager.pid, signal.SIGCONT)
        time.sleep(3)
        kit.hold(client.process.poll() is None, "the program ended:", client.said())
        kit.hold(len(pool.live_leases()) == 1, "the lease is gone:", pool.leases())
        client.process.terminate()
        client.ends(143)
    pool.all_free()


def stale(pool, box):
    with pool.borrow("/bin/sh", "-c", "echo $DXPU_WORKER $DXPU_TOKEN_FILE; sleep 60", options=("--kind", "pcie")) as client:
        client.wait_for("/tokens")
        address, path = client.said().split()[:2]
        with open(path) as file:
            token = file.read().strip()
        client.process.terminate()
        client.ends(143)
    pool.all_free()
    kept = pool.file("stale-token")
    with open(os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(token)
    words = [kit.dxpu, "run", "--worker", address, "--token-file", kept, "--", "/bin/true"]
    result = kit.run_plainly(words, pool.environment)
    kit.hold(result.returncode == 65 and "lease" in result.stderr, "an old token:", result.returncode, result.stderr)
    with open(kept, "w") as file:
        file.write(token[:-4] + "AAAA")
    result = kit.run_plainly(words, pool.environment)
    kit.hold(result.returncode == 65, "a forged token:", result.returncode, result.stderr)
    # The box decided alone, and told the pool afterwards.
    trail = lambda: [json.loads(line) for line in pool.ask("audit", "ls", "--json").stdout.splitlines()]
    told = lambda: {entry["detail"] for entry in trail() if entry["action"] == "gpu.attach" and entry["outcome"] == "denied"}
    kit.until(lambda: f"both are in the audit trail: {trail()}", lambda: len(told()) >= 2, 15)


def share(pool):
    said = pool.must(kit.program("free_memory"), options=("--share", "250,100MiB"))
    free = int(re.search(r"^(\d+)$", said, re.M)[1])
    kit.hold(90 << 20 <= free <= 100 << 20, "a share of 100 MiB has", free, "bytes free")
    pool.all_free()


def breaks(pool, boxes):
    with busy(pool) as client:
        [lease] = pool.live_leases()
        name = lease["grants"][0]["gpu"].split("/")[0]
        broken = next(box for box in boxes if box.name == name)
        result = pool.ask("box", "break", "0", "--reason", "for the story", "--state-dir", broken.state)
        kit.hold(result.returncode == 0, result.stderr)
        client.ends(7)
        kit.until(lambda: f"the GPU is bad: {pool.gpus()}", lambda: pool.gpus()[f"{name}/0"]["state"] == "bad", 20)
    # The other GPU serves.
    pool.must(kit.program("load"), 1, 2)
    # A GPU that is still broken does not pass.
    kit.hold(pool.ask("gpu", "repair", f"{name}/0").returncode == 0, pool.last.stderr)
    kit.until(lambda: f"the burn-in fails: {pool.gpus()}\n{pool.logs()}",
              lambda: "burn-in" in broken.log() and pool.gpus()[f"{name}/0"]["state"] == "bad", 30)
    kit.hold(pool.ask("box", "heal", "0", "--state-dir", broken.state).returncode == 0, pool.last.stderr)
    kit.until("the repair is ordered", lambda: pool.ask("gpu", "repair", f"{name}/0").returncode == 0, 20)
    kit.until(lambda: f"the burn-in passes: {pool.gpus()}\n{pool.logs()}", lambda: pool.gpus()[f"{name}/0"]["state"] == "free", 90)
    kit.hold("patterns held" in broken.log(), "no burn-in was seen:", broken.log()[-2000:])
    pool.must(kit.program("load"), 1, 2, gpus=2)
    pool.all_free()


def chaos(pool, boxes):
    frozen = 0
    for number in range(ROUNDS):
        gpus = random_source.choice((1, 1, 2))
        with pool.borrow(kit.program("load"), 1, 0, gpus=gpus) as client:
            if random_source.random() < 0.7:
                kit.until(lambda: f"round {number}: the program works or ends: {client.said()}\n{pool.logs()}",
                          lambda: "working" in client.said() or client.process.poll() is not None, 90)
            time.sleep(random_source.random() * 1.0)
            box = random_source.choice(boxes)
            what = random_source.choice(("agent", "worker", "borrower", "freeze agent", "freeze worker", "freeze borrower", "term"))
            victims = []
            if what == "agent":
                box.kill_agent()
                time.sleep(random_source.random())
                box.start()
            elif what == "worker" and box.worker():
                kill(box.worker())
            elif what == "borrower":
                client.process.kill()
            elif what == "freeze agent":
                victims = [box.process.pid]
            elif what == "freeze worker" and box.worker():
                victims = [box.worker(), *descendants(box.worker())]
            elif what == "freeze borrower":
                victims = [client.pid]
            elif what == "term":
                client.process.terminate()
            if victims:
                frozen += 1
                for pid in victims:
                    kill(pid, signal.SIGSTOP)
                # Sometimes longer than the lease and than a box may be silent.
                time.sleep(random_source.choice((0.5, 2, 10)))
                for pid in victims:
                    kill(pid, signal.SIGCONT)
            orphans = descendants(client.pid) if kit.alive(client.pid) else []
            if client.process.poll() is None:
                client.process.terminate()
                with_patience(client)
            for pid in orphans:
                kill(pid)
    pool.all_free(90)
    pool.must(kit.program("load"), 1, 2, gpus=2)
    pool.all_free()
    return f"{frozen} of them frozen"


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def with_patience(client):
    kit.until(lambda: f"the borrower ends: {client.said()}", lambda: client.process.poll() is not None, 60)


def one_at_a_time(pool, boxes):
    """Leases of a slot come one after the other and never again."""
    seen = 0
    for box in boxes:
        last, over = {}, {}
        for _, slot, lease in box.sessions():
            seen += 1
            if last.get(slot) != lease:
                kit.hold(lease not in over.setdefault(slot, set()), box.name, slot, "let", lease, "in again after another")
                if slot in last:
                    over[slot].add(last[slot])
                last[slot] = lease
        kit.hold(not box.overlaps(), box.name, "let two leases in at once:", box.overlaps()[:3])
    kit.hold(seen > 20, "only", seen, "sessions were seen")
    return f"{seen} sessions"
