"""A hundred jobs in arrays, while jobs are cancelled and requeued, a node dies, managers fail over and slurmctld is restarted."""
import json
import random
import time

import kit
from cluster import USERS

JOBS = 100
ARRAYS = 4
# It takes two to four minutes on two busy cores: most of it is what Slurm keeps back after its restart.
SECONDS_MAX = 600
FINAL = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "TIMEOUT"}


def tell(record, world):
    record.part("a task that has its GPU does not wait for one of its array that has none", overtakes, world)
    record.part(f"{JOBS} jobs in arrays: cancelled, requeued, a node dies, managers fail over, slurmctld restarts", run, world)


def overtakes(world):
    """Slurm looks at no task of an array behind one that waits for GPUs. Here the pool serves the task first that Slurm has last."""
    slurm, pool = world.slurm, world.pool
    total = len(pool.gpus())
    made = pool.ask("lease", "create", "--gpus", str(total), "--ttl", "1h", "-o", "json")
    kit.hold(made.returncode == 0, "no lease:", made.stderr)
    array = slurm.submit(world.script(1, gpus=total), "--array=1-4")
    kit.until(lambda: f"all tasks wait for GPUs: {left(world, tasks(world, [array]))}", lambda: len(world.leases()) == 4, 120)
    first = min(world.leases().items(), key=lambda item: item[1][0]["created_ms"])[0]
    for name, task in tasks(world, [array]).items():
        if task.number != first:
            slurm.ask("scontrol", "update", f"JobId={name}", "Nice=-10")
    pool.ask("lease", "release", json.loads(made.stdout)["id"])
    kit.until(lambda: f"all tasks end: {left(world, tasks(world, [array]))}", lambda: ended(world, [array]) == 4, 240)
    states = tasks(world, [array])
    kit.hold(all(task.state == "COMPLETED" for task in states.values()), "not all came to their end:", states)
    kit.until(lambda: f"leases are back: {world.leases()}", lambda: not world.leases(), 120)


def ended(world, arrays):
    return sum(task.state in FINAL for task in tasks(world, arrays).values())


def run(world):
    slurm, pool, dice = world.slurm, world.pool, random.Random(19)
    arrays = []
    for number in range(ARRAYS):
        script = world.script(1, gpus=2 if number == 0 else 1, srun=number == 1)
        arrays.append(slurm.submit(script, f"--array=1-{JOBS // ARRAYS}", "--requeue", user=USERS[number % len(USERS)]))
    every = {f"{array}_{index}" for array in arrays for index in range(1, JOBS // ARRAYS + 1)}
    began, happened, cancelled = time.monotonic(), [], set()
    faults = [
        (4, "cancel", lambda: cancel(world, dice, arrays, cancelled)),
        (7, "the leading manager is killed", lambda: fail_over(pool)),
        (12, "a node dies", lambda: slurm.kill_node("n0")),
        (15, "cancel", lambda: cancel(world, dice, arrays, cancelled)),
        (20, "the leading manager is killed", lambda: fail_over(pool)),
        (22, "the node is back", lambda: slurm.start_node("n0")),
        (26, "slurmctld is restarted", lambda: (slurm.end("slurmctld"), slurm.start_controller())[:0]),
        (40, "requeue", lambda: requeue(world, arrays)),
        (43, "cancel", lambda: cancel(world, dice, arrays, cancelled)),
    ]
    while True:
        while faults and time.monotonic() - began >= faults[0][0]:
            _, name, fault = faults.pop(0)
            happened.append(f"{name} {fault() or ''}".strip())
        states = tasks(world, arrays)
        # One that was cancelled before Slurm made a record for it is not known any more.
        if not faults and every - cancelled <= set(states) and all(task.state in FINAL for task in states.values()):
            break
        for name, task in states.items():
            help_on(slurm, name, task)
        if time.monotonic() - began >= SECONDS_MAX:
            kit.hold(False, "jobs are left:", left(world, states))
        time.sleep(1)
    seconds = time.monotonic() - began
    kit.until(lambda: f"leases are back: {world.leases()}\n{slurm.logs()}", lambda: not world.leases(), 90)
    counts = {}
    for task in states.values():
        counts[task.state] = counts.get(task.state, 0) + 1
    bad = {name: (task, slurm.said(task.number)) for name, task in states.items() if task.state in ("FAILED", "TIMEOUT")}
    kit.hold(not bad, "jobs failed by themselves:", bad, slurm.log("nodes")[-3000:])
    kit.hold(counts.get("COMPLETED", 0) >= JOBS * 3 // 4, "too few came to their end:", counts)
    return f"{counts} in {seconds:.0f} s; {'; '.join(happened)}; {slurm.mended()} queued again that Slurm had forgotten"


def help_on(slurm, name, task):
    """What an operator in a hurry does: Slurm holds a task whose start failed, and keeps one back for a minute that was staged while
    slurmctld restarted. One that ran before must be kept back: slurmd runs no Prolog while it knows the job's old credential."""
    if task.state == "PENDING" and task.reason == "BeginTime" and slurm.job(name).get("Restarts") == "0":
        slurm.run("scontrol", "update", f"JobId={name}", "StartTime=now")
    elif task.state == "PENDING" and task.priority == 0 and not waits(slurm, task.number):
        slurm.run("scontrol", "release", name)


def waits(slurm, number):
    """Whether a job is held because it waits for GPUs: dxpu releases it."""
    return (slurm.folder / "state" / f"hash.{number % 10}" / f"job.{number}" / "dxpu-waits").exists()


class Task:
    def __init__(self, number, state, priority, reason):
        self.number, self.state, self.priority, self.reason = int(number), state, int(priority), reason

    def __repr__(self):
        return f"{self.number} {self.state} priority {self.priority} {self.reason}"


def tasks(world, arrays):
    """The tasks of the arrays that Slurm knows, by ARRAY_INDEX: commands take no other name for one. None while slurmctld is away."""
    lines = world.slurm.run("squeue", "--noheader", "--all", "--array", "--states=all", "--format", "%F %K %A %T %Q %r").stdout.split("\n")
    # A reason may have several lines.
    rows = [line.split(None, 5) for line in lines if line[:1].isdigit()]
    return {f"{array}_{index}": Task(*rest) for array, index, *rest in rows if int(array) in arrays}


def left(world, states):
    """What Slurm and the pool say of the jobs that are not over: a line for each that has a lease, and how many have none."""
    leases, lines, without = world.leases(), [], 0
    for name, task in states.items():
        if task.state in FINAL:
            continue
        found = leases.get(task.number)
        if not found:
            without += 1
            continue
        job = world.slurm.job(name)
        shown = " ".join(f"{word}={job.get(word)}" for word in ("Restarts", "StartTime", "NodeList", "BurstBufferState"))
        lines.append(f"{name} {task} lease {[lease['state'] for lease in found]} {shown}")
    lines.sort(key=lambda line: "granted" in line)
    return "\n".join([f"{without} without a lease", *lines, world.slurm.ask("sinfo", "-Nho", "%N %T %E")])


def named(world, arrays, *states):
    found = tasks(world, arrays).items()
    return [name for name, task in found if task.state not in FINAL and (not states or task.state in states)]


def cancel(world, dice, arrays, cancelled):
    """Some that run, some that wait for GPUs, some that have not begun."""
    live = named(world, arrays)
    chosen = dice.sample(live, min(3, len(live))) + named(world, arrays, "RUNNING")[:1]
    if chosen:
        cancelled.update(chosen)
        world.slurm.run("scancel", *chosen)
    return len(chosen)


def requeue(world, arrays):
    running = named(world, arrays, "RUNNING")[:2]
    for task in running:
        world.slurm.run("scontrol", "requeue", task)
    return len(running)


def fail_over(pool):
    leading = [manager for manager in pool.managers if manager.leads()]
    for manager in leading[:1]:
        manager.kill()
        manager.start()
    return leading[0].name if leading else "none led"
