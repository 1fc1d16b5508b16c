"""What becomes of a program, and of its neighbour on the same GPU, when a worker is killed, a kernel faults, memory runs out."""

import os
import re
import signal
import statistics
import subprocess
import time

import compare
from bed import Skipped, hold, tail, until
from workers import alive

# Torch is imported, the context made, and the first steps run.
READY_SECONDS = 120
# The promise: an error reaches the program within this time.
ERROR_WITHIN_SECONDS = 1.0
# A neighbour may be delayed by a fault's handling in the driver, but not for longer than this.
NEIGHBOUR_GAP_SECONDS = 0.5


# PyTorch's kernels need a real GPU; CuPy's train also on the soft driver, which shows that these stories themselves are right.
TRAINERS = {"nvidia": "programs/train.py", "soft": "programs/train_cupy.py"}


class Trainer:
    """A program that trains until something happens to it."""

    def __init__(self, bed, name, mode, worker, steps=None):
        program = bed.python(TRAINERS[bed.driver]) + ([str(steps)] if steps else [])
        self.process = bed.start(name, mode, program, worker=worker)

    def steps(self):
        """Number, time and loss of each step so far."""
        found = re.findall(r"^step (\d+) ([\d.]+) (\S+)$", self.process.said(), re.M)
        return [(int(number), float(when), loss) for number, when, loss in found]

    def is_under_way(self):
        self.process.wait_for("step 200 ", READY_SECONDS)

    def error_at(self):
        found = re.search(r"^error-at ([\d.]+)$", self.process.said(), re.M)
        return float(found[1]) if found else None


def _reference_losses(bed, steps=400):
    """Losses of the undisturbed program, natively where there is a native driver."""
    trainer = Trainer(bed, "train-reference", bed.reference, None, steps)
    result = trainer.process.finish(READY_SECONDS)
    hold(result.problem() is None, "the undisturbed program fails:", result.problem())
    losses = [loss for _, _, loss in trainer.steps()]
    hold(len(set(losses)) > steps / 2, "the program does not learn:", losses[:5])
    return losses


def _neighbour_is_undisturbed(neighbour, since, reference, lines):
    """It goes on after `since`, without a gap, with the losses it would have had alone."""
    time.sleep(1.5)
    steps = neighbour.steps()
    hold(neighbour.process.process.poll() is None, "the neighbour ended:", tail(neighbour.process.complained()))
    after = [when for _, when, _ in steps if when > since]
    hold(len(after) > 20, "the neighbour stands still: steps after the fault:", len(after))
    before = [when for _, when, _ in steps if since - 1.5 < when <= since]
    gaps = lambda times: [b - a for a, b in zip(times, times[1:])]
    longest = max(gaps([before[-1], *after]))
    hold(longest < NEIGHBOUR_GAP_SECONDS, f"the neighbour was held up for {longest:.3f} s")
    compared = [(loss, expected) for (_, _, loss), expected in zip(steps, reference)]
    hold(len(compared) >= 100 and all(loss == expected for loss, expected in compared), "the neighbour computes something else")
    medians = [statistics.median(gaps(times)) * 1e3 for times in (before, after)]
    lines.append(
        f"neighbour: step {medians[0]:.2f} ms before, {medians[1]:.2f} ms after, longest gap {longest * 1e3:.0f} ms, same losses"
    )


def _client_gets_its_error(trainer, killed_at, lines, what):
    """Within a second an error that every later call repeats; then a good end."""
    until(lambda: f"{what}: the program has its error; it said {tail(trainer.process.said(), 3)}", trainer.error_at, 20)
    took = trainer.error_at() - killed_at
    result = trainer.process.finish(30)
    hold(not result.is_late and "ended-well" in result.out, what, "the program hangs after its error:", tail(result.err))
    facts = compare.facts(result.out)
    later = [fact.value for key, fact in facts.items() if key.startswith("later-call")]
    hold(later and set(later) == {"error"}, what, "later calls do not fail:", later)
    lines.append(f"{what}: error after {took * 1e3:.0f} ms: {facts['error'].value}")
    hold(took < ERROR_WITHIN_SECONDS, f"{what}: the error came after {took:.2f} s")


def the_session_is_killed(bed):
    """SIGKILL of the process that serves a client, in mid-training, over each transport; the neighbour goes on."""
    lines, reference = [], _reference_losses(bed)
    with bed.new_worker() as worker:
        neighbour = Trainer(bed, "neighbour-of-killed", "tcp", worker)
        try:
            neighbour.is_under_way()
            for scheme in ("tcp", "tls", "unix", "shm"):
                victim = Trainer(bed, f"victim-{scheme}", scheme, worker)
                try:
                    victim.is_under_way()
                    session = worker.session_of(victim.process.pid)
                    hold(session, "the worker's log does not name the session of", victim.process.pid, tail(worker.log(), 8))
                    killed_at = time.time()
                    os.kill(session, signal.SIGKILL)
                    _client_gets_its_error(victim, killed_at, lines, f"session killed, {scheme}")
                finally:
                    victim.process.end()
                _neighbour_is_undisturbed(neighbour, killed_at, reference, lines)
        finally:
            neighbour.process.end()
    return lines


def the_worker_is_killed(bed):
    """SIGKILL of the worker itself: its sessions end with it, and every client gets an error."""
    lines = []
    with bed.new_worker() as worker:
        victims = {scheme: Trainer(bed, f"front-victim-{scheme}", scheme, worker) for scheme in ("tcp", "tls", "unix", "shm")}
        try:
            for victim in victims.values():
                victim.is_under_way()
            sessions = worker.sessions()
            killed_at = time.time()
            worker.process.kill()
            for scheme, victim in victims.items():
                _client_gets_its_error(victim, killed_at, lines, f"worker killed, {scheme}")
            until("the sessions end with their worker", lambda: not any(map(alive, sessions)), 10)
        finally:
            for victim in victims.values():
                victim.process.end()
    return lines


def a_kernel_faults(bed):
    """An illegal address and a failed assertion: the codes CUDA gives, soon, and the neighbour goes on."""
    lines, reference = [], _reference_losses(bed)
    with bed.new_worker() as worker:
        neighbour = Trainer(bed, "neighbour-of-faulty", "tcp", worker)
        try:
            neighbour.is_under_way()
            for kind in ("illegal", "assert"):
                facts = {}
                for mode in dict.fromkeys((bed.reference, "tcp", "shm")):
                    faulty = bed.start(f"fault-{kind}", mode, [*bed.python("programs/fault.py"), kind], worker=worker)
                    try:
                        faulty.wait_for("ready", READY_SECONDS)
                        since = time.time()
                        result = faulty.finish(60)
                    finally:
                        faulty.end()
                    hold(not result.is_late, f"{kind}, {mode}: hangs", tail(result.err))
                    facts[mode] = compare.facts(result.out)
                    hold("error" in facts[mode], f"{kind}, {mode}: {tail(result.err)}")
                    lines.append(
                        f"{kind}, {mode}: {facts[mode]['error'].value} {re.findall(r'^. seconds (.*)$', result.out, re.M)} s"
                    )
                    hold(facts[mode]["within-a-second"].value == "True", f"{kind}, {mode}: the error came late")
                    if mode != "native":
                        _neighbour_is_undisturbed(neighbour, since, reference, lines)
                for mode in facts:
                    different = compare.differing(facts[bed.reference], facts[mode])
                    shown = [compare.show(key, facts[bed.reference], facts[mode]) for key in different]
                    hold(not different, f"{kind}, {mode} differs:\n" + "\n".join(shown))
        finally:
            neighbour.process.end()
    return lines


def an_allocation_is_over_the_limit(bed):
    """A worker that grants 8 GiB of the GPU: PyTorch is out of memory beyond it, soon, and goes on with less."""
    limit = 8 << 30
    if not _limits_memory(bed):
        raise Skipped("this worker has no limit on the memory of a real GPU (see dxpu worker --help)")
    lines, reference = [], _reference_losses(bed)
    with bed.new_worker("--memory", "8GiB") as worker:
        neighbour = Trainer(bed, "neighbour-of-greedy", "tcp", worker)
        try:
            neighbour.is_under_way()
            since = time.time()
            result = bed.run("over_limit", "tcp", [*bed.python("programs/over_limit.py"), str(limit)], 120, worker=worker)
            hold(result.problem() is None, result.problem())
            _neighbour_is_undisturbed(neighbour, since, reference, lines)
        finally:
            neighbour.process.end()
        facts = compare.facts(result.out)
        keys = ("what_the_device_says", "too_much_is_refused", "bit_by_bit", "less_is_granted")
        said = {key: facts[key].value if key in facts else None for key in keys}
        wrong = {key: value for key, value in said.items() if value != "True"}
        hold(not wrong, "wrong:", wrong, tail(result.err))
    return lines + [line[:160] for line in result.out.splitlines() if line.startswith(".")]


def _limits_memory(bed):
    if bed.driver == "soft":
        return True
    text = subprocess.run([bed.dxpu, "worker", "--help"], capture_output=True, text=True, check=True).stdout
    described = re.search(r"--memory <SIZE>(.*?)\n\s+--", text, re.S)
    return bool(described) and "NVIDIA" in described[1]
