"""Programs that look at their GPUs: they see the leased ones and only those, take nothing of them, and notice a loss."""
import contextlib
import json
import os
import re
import signal
import sys

import kit

GPU_IS_LOST = 15
STALL = 1.0
# Two loaded cores are late with everything.
SLACK = 2.0
WATCHERS = 24


def tell(record):
    with kit.Worker("--devices", "3", "--memory", "2GiB") as worker:
        for scheme in kit.SCHEMES:
            record.part(f"NVML and CUDA say the same of every device, over {scheme}", agree, worker, scheme)
    with kit.Worker("--sessions", "2", "--memory", "2GiB") as worker:
        record.part("memory follows allocations", memory_follows, worker)
        record.part("a device that works is busy, one that rests is not", busy, worker)
        record.part("nvmlInit and nvmlShutdown are counted; bad calls get their codes", ask, worker, "count")
        for scheme in kit.SCHEMES:
            record.part(f"a forked child looks for itself, over {scheme}", ask, worker, "fork", scheme)
        record.part(f"{WATCHERS} watchers keep nobody from computing", watchers, worker)
        record.part("a watcher survives the process that serves it", served_anew, worker)
        record.part("nothing is left of watchers", nothing_left, worker)
    record.part("two workers are two devices, in CUDA's order", two_workers)
    for scheme in kit.SCHEMES:
        record.part(f"a killed worker is a lost GPU, over {scheme}", worker_dies, scheme)
    record.part("a frozen worker is a lost GPU", worker_freezes)


def nvml(what):
    return [sys.executable, os.path.join(kit.HERE, "programs", "nvml.py"), what]


def ask(worker, what, scheme="unix", **more):
    return worker.must(*nvml(what), scheme=scheme, **more)


def agree(worker, scheme):
    seen = json.loads(ask(worker, "show", scheme))
    kit.hold(len(seen["nvml"]) == 3, seen)
    for ours, theirs in zip(seen["nvml"], seen["cuda"], strict=True):
        kit.hold(ours["gpu"] == 0, "nobody works, and it is busy:", ours)
        kit.hold({**ours, "gpu": 0} == {**theirs, "gpu": 0}, "NVML says", ours, "and CUDA", theirs)


def memory_follows(worker):
    seen = json.loads(ask(worker, "allocate"))
    # What is set aside for the session's small allocations turns into the first bytes of the large one.
    kit.hold(seen["during"] - seen["before"] >= seen["size"] - (64 << 20), seen)
    kit.hold(seen["after"] < seen["during"] - seen["size"] // 2, seen)
    kit.hold(seen["total"] == 2 << 30, seen)


def percentages(watcher):
    return [tuple(map(int, pair)) for pair in re.findall(r"gpu (\d+) memory (\d+)", watcher.said())]


def busy(worker):
    with worker.start(*nvml("busy")) as watcher:
        kit.until("a percentage", lambda: percentages(watcher))
        kit.hold(percentages(watcher)[0] == (0, 0), "at rest:", percentages(watcher))
        with worker.start(kit.program("load"), 2, 0) as load:
            load.wait_for("working")
            is_busy = lambda: any(gpu > 0 and memory > 0 for gpu, memory in percentages(watcher))
            kit.until(lambda: f"it is busy: {percentages(watcher)}", is_busy)
        is_idle = lambda: percentages(watcher)[-1] == (0, 0)
        kit.until(lambda: f"it is idle again: {percentages(watcher)[-5:]}", is_idle)
        most = max(percentages(watcher))
        return f"at most {most[0]} % and {most[1]} %"


def watchers(worker):
    """More of them than the worker has sessions, and both sessions are still there for programs."""
    with contextlib.ExitStack() as stack:
        # Each looks whether the worker is there when it starts, which is a session for a moment.
        clients = []
        for _ in range(WATCHERS):
            client = stack.enter_context(worker.start(*nvml("poll")))
            client.wait_for("polling")
            clients.append(client)
        worker.must(kit.program("load"), 1, 3)
        for client in clients:
            kit.hold(client.process.poll() is None, "a watcher ended:", client.said())


def served_anew(worker):
    with worker.start(*nvml("busy")) as watcher:
        kit.until("a percentage", lambda: percentages(watcher))
        kit.until("only spares and the status process", lambda: len(worker.children()) == kit.SPARES + 1)
        found = [pid for pid in worker.children() if serves_status(pid)]
        kit.hold(len(found) == 1, "status processes:", found)
        before = len(percentages(watcher))
        os.kill(found[0], signal.SIGKILL)
        kit.until("percentages go on", lambda: len(percentages(watcher)) > before + 3)


def serves_status(pid):
    """Whether a process has a thread that serves somebody who looks."""
    with contextlib.suppress(FileNotFoundError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/comm") as comm:
                if comm.read().strip() == "dxpu-status":
                    return True
    return False


def nothing_left(worker):
    kit.until("the status process leaves", lambda: len(worker.children()) == kit.SPARES, 30)
    with worker.left_as_found(seconds=40):
        ask(worker, "show")
        kit.until("the status process leaves", lambda: len(worker.children()) == kit.SPARES, 30)


def two_workers():
    with kit.Worker("--memory", "1GiB") as near, kit.Worker("--memory", "3GiB", "--token-file", near.token_file) as far:
        both = f"{near.addresses['unix']},{far.addresses['tcp']}"
        command = [kit.dxpu, "run", "--worker", both, "--token-file", near.token_file, "--", *nvml("show")]
        result = kit.run_plainly(command, near.environment)
        kit.hold(result.returncode == 0, result.stdout, result.stderr)
        seen = json.loads(result.stdout)
        totals = [[device["total"] >> 30 for device in seen[who]] for who in ("nvml", "cuda")]
        kit.hold(totals == [[1, 3], [1, 3]], totals)


def worker_dies(scheme):
    with kit.Worker() as worker, worker.start(*nvml("poll"), scheme=scheme) as watcher:
        watcher.wait_for("polling")
        worker.process.kill()
        watcher.ends(0, 10)
        return lost_after(watcher, 1.0)


def worker_freezes():
    with kit.Worker() as worker:
        with worker.start(*nvml("poll"), environment={"DXPU_STALL_TIMEOUT": f"{STALL}s"}) as watcher:
            watcher.wait_for("polling")
            frozen = [worker.pid, *worker.children()]
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)
            try:
                watcher.ends(0, 30)
            finally:
                for pid in frozen:
                    os.kill(pid, signal.SIGCONT)
            return lost_after(watcher, STALL + SLACK)


def lost_after(watcher, seconds):
    code, after = re.search(r"code (\d+) after ([\d.]+)", watcher.said()).groups()
    kit.hold(int(code) == GPU_IS_LOST, "the code is", code)
    kit.hold(float(after) < seconds, "it took", after, "s")
    return f"after {float(after) * 1000:.0f} ms"
