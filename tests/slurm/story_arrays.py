"""A hundred jobs in arrays, while jobs are cancelled and requeued, a node dies, managers fail over and slurmctld is restarted."""
import random
import time

import kit
from cluster import USERS

JOBS = 100
ARRAYS = 4
SECONDS_MAX = 260
FINAL = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "TIMEOUT"}


def tell(record, world):
    record.part(f"{JOBS} jobs in arrays: cancelled, requeued, a node dies, managers fail over, slurmctld restarts", run, world)


def run(world):
    slurm, pool, dice = world.slurm, world.pool, random.Random(19)
    arrays = []
    for number in range(ARRAYS):
        script = world.script(1, gpus=2 if number == 0 else 1, srun=number == 1)
        arrays.append(slurm.submit(script, f"--array=1-{JOBS // ARRAYS}", "--requeue", user=USERS[number % len(USERS)]))
    began, done, happened = time.monotonic(), [], []
    faults = [
        (5, "cancel", lambda: cancel(world, dice, arrays)),
        (10, "the leading manager is killed", lambda: fail_over(pool)),
        (20, "a node dies", lambda: slurm.kill_node("n0")),
        (24, "cancel", lambda: cancel(world, dice, arrays)),
        (30, "the leading manager is killed", lambda: fail_over(pool)),
        (34, "the node is back", lambda: slurm.start_node("n0")),
        (38, "slurmctld is restarted", lambda: (slurm.end("slurmctld"), slurm.start_controller())),
        (48, "requeue", lambda: requeue(world, arrays)),
        (52, "cancel", lambda: cancel(world, dice, arrays)),
    ]
    while True:
        while faults and time.monotonic() - began >= faults[0][0]:
            _, name, fault = faults.pop(0)
            happened.append(f"{name} {fault() or ''}".strip())
        states = tasks(world, arrays)
        done = [number for number, state in states.items() if state in FINAL]
        if not faults and states and len(done) == len(states):
            break
        for number, state in states.items():
            if state == "PENDING":
                job = slurm.job(number)
                # Slurm keeps a requeued job back for two minutes, and holds one whose start failed for its operator.
                if job.get("Restarts", "0") != "0":
                    slurm.run("scontrol", "update", f"JobId={number}", "StartTime=now")
                if job.get("Priority") == "0":
                    slurm.run("scontrol", "release", str(number))
        kit.hold(time.monotonic() - began < SECONDS_MAX, "jobs are left:", left(world, states))
        time.sleep(1)
    states = tasks(world, arrays)
    kit.hold(len(states) >= JOBS, "only", len(states), "tasks are known")
    world.until_returned(*states, seconds=90)
    counts = {state: list(states.values()).count(state) for state in set(states.values())}
    bad = {number: (slurm.job(number), slurm.said(number)) for number, state in states.items() if state in ("FAILED", "TIMEOUT")}
    kit.hold(not bad, "jobs failed by themselves:", bad, slurm.log("nodes")[-3000:])
    kit.hold(counts.get("COMPLETED", 0) >= JOBS * 3 // 4, "too few came to their end:", counts)
    return f"{counts}; {'; '.join(happened)}"


def left(world, states):
    """What Slurm says of the jobs that are not over, a line for each."""
    lines = []
    for number, state in states.items():
        if state not in FINAL:
            job = world.slurm.job(abs(number))
            lines.append(f"{number} {state} " + " ".join(f"{name}={job.get(name)}" for name in ("JobState", "Reason", "Priority", "Restarts", "StartTime", "NodeList", "BurstBufferState")))
    lines.append(world.slurm.ask("sinfo", "-Nho", "%N %T %E"))
    return "\n".join(lines)


def tasks(world, arrays):
    """Numbers and states of the tasks of the arrays."""
    lines = world.slurm.run("squeue", "--noheader", "--all", "--array", "--states=all", "--format", "%F %A %K %T").stdout.split("\n")
    found, waiting = {}, 0
    for line in filter(None, lines):
        array, number, _, state = line.split()
        if int(array) in arrays:
            if int(number) in found:
                waiting += 1  # tasks without a number of their own
                found[-waiting] = state
            else:
                found[int(number)] = state
    return found


def named(world, arrays, state=None):
    """ARRAY_TASK of the tasks that are not over: commands take no other name for one."""
    lines = world.slurm.run("squeue", "--noheader", "--all", "--array", "--format", "%F %K %T").stdout.split("\n")
    rows = [line.split() for line in filter(None, lines)]
    return [f"{array}_{task}" for array, task, is_in in rows if int(array) in arrays and is_in not in FINAL and state in (None, is_in)]


def cancel(world, dice, arrays):
    """Some that run, some that wait for GPUs, some that have not begun."""
    live = named(world, arrays)
    chosen = dice.sample(live, min(3, len(live))) + named(world, arrays, "RUNNING")[:1]
    if chosen:
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
