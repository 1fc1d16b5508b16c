"""One job at a time: what it may write, what it sees, and every way in which it ends."""
import os
import pwd
import re
import stat

import kit
from cluster import USERS

BAD = [
    ("#DXPU gpus=none", "gpus=none: write a whole number"),
    ("#DXPU gpu=1", "there is no `gpu`; there are gpus, model"),
    ("#DXPU gpus=1 gpus=2", "`gpus` is given twice"),
    ("#DXPU memory=80", "memory=80: write a whole number and a unit"),
    ("#DXPU", "asks for nothing"),
]


def tell(record, world):
    limited = []
    record.part("a job that lives longer than its time limit is started", lambda: limited.append(world.slurm.submit(world.script(600), "--time=1")))
    record.part("a wrong directive is refused at submission, in words", refused, world)
    record.part("a job and its steps see exactly their GPUs; tokens are its user's alone", sees, world)
    record.part("a job that a job submits does not have its GPUs", nested, world)
    record.part("a job without a directive runs, and sees nothing", plain, world)
    record.part("a job that cannot be served is held, and asks again when it is released", never, world)
    record.part("scancel gives the GPUs back, of a job that runs and of one that waits", cancelled, world)
    record.part("requeue gives the GPUs back, and the job gets others under another lease", requeued, world)
    record.part("a job that is requeued and started again at once finds its GPUs beside steps of others", hurried, world)
    record.part("a job whose Prolog cannot get its GPUs says why", unattached, world)
    record.part("a preempted job gives its GPUs back and runs again", preempted, world)
    record.part("a node that dies gives its job's GPUs back", node_dies, world)
    record.part("a job at its time limit gives its GPUs back", time_limit, world, limited)


def refused(world):
    for line, words in BAD:
        path = world.slurm.folder / "out" / "bad.sh"
        path.write_text(f"#!/bin/bash\n{line}\ntrue\n")
        result = world.slurm.run("sbatch", str(path), user=USERS[0])
        kit.hold(result.returncode != 0 and words in result.stderr, line, "was answered:", result.stdout, result.stderr)
    option = world.slurm.run("sbatch", "--bb=#DXPU gpus=x", "--wrap=true", user=USERS[0])
    kit.hold(option.returncode != 0 and "gpus=x" in option.stderr, "--bb was answered:", option.stdout, option.stderr)
    kit.hold(not world.leases() or len(world.leases()) <= 1, "a refused job has a lease:", world.leases())


def sees(world):
    out = world.slurm.folder / "out"
    looked = out / "looked"
    script = world.script(1, gpus=2, srun=True) + f"env | grep -E '^(DXPU|LD_LIB)' > {out}/batch.env\ncp $DXPU_TOKEN_FILE {out}/copied\nsleep 3\n"
    script += f"for _ in {{1..600}}; do [ -e {looked} ] && break; sleep 0.2; done\n"
    job = world.slurm.submit(script)
    world.until_running(job)
    node = world.slurm.job(job)["BatchHost"]
    folder = world.slurm.folder / "run" / node / str(job)
    for name in ("tokens", "environment", "ca.pem"):
        found = os.stat(folder / name)
        owner = pwd.getpwnam(USERS[0]).pw_uid
        kit.hold((found.st_uid, stat.S_IMODE(found.st_mode)) == (owner, 0o400), name, "is not its user's alone:", found)
    stranger = world.slurm.run("cat", str(folder / "tokens"), user=USERS[1])
    kit.hold(stranger.returncode != 0 and not stranger.stdout, "another user can read the tokens")
    comment = world.slurm.job(job).get("AdminComment", "")
    lease = world.lease(job)
    kit.hold(f"lease={lease['id']} gpus=2" in comment, "the job does not say which lease it has:", comment)
    looked.touch()
    world.until_state(job, "COMPLETED")
    world.until_returned(job)
    (_, seen, gpus, *_), = [one for one in world.told() if one[0] == job]
    kit.hold(seen == lease["id"] and len(set(gpus)) == 2, "a step saw", seen, gpus, "instead of", lease)
    environment = (out / "batch.env").read_text()
    kit.hold(f"DXPU_LEASE={lease['id']}" in environment and "DXPU_TOKEN=" not in environment, "the batch script was told", environment)
    kit.until("the node has no files of the job", lambda: not folder.exists(), 60)
    # The line is written after the lease is back.
    usage = lambda: [line for line in world.slurm.usage.read_text().splitlines() if f" job={job} " in line] if world.slurm.usage.exists() else []
    kit.until("the job's GPU seconds are written", usage, 60)
    line, = usage()
    seconds = float(re.search(r"gpu_seconds=([\d.]+)", line)[1])
    granted, ended = (int(re.search(rf"{name}=(\d+)", line)[1]) for name in ("granted_ms", "ended_ms"))
    kit.hold(abs(seconds - 2 * (ended - granted) / 1000) < 0.002 and seconds >= 8, "the GPU seconds are wrong:", line)


def nested(world):
    out = world.slurm.folder / "out"
    (out / "inner.sh").write_text(f"#!/bin/bash\nenv | grep DXPU > {out}/inner.env\n{world.seen} 0 > {out}/inner.said 2>&1\ntrue\n")
    job = world.slurm.submit(world.script(1) + f"sbatch --output=/dev/null -w $SLURMD_NODENAME {out}/inner.sh\nsleep 6\n")
    world.until_state(job, "COMPLETED")
    kit.until("the inner job ran", lambda: (out / "inner.said").exists() and (out / "inner.said").read_text(), 120)
    kit.hold("DXPU_" not in (out / "inner.env").read_text(), "the inner job inherited:", (out / "inner.env").read_text())
    kit.hold("begin" not in (out / "inner.said").read_text(), "the inner job saw a GPU:", (out / "inner.said").read_text())
    world.until_returned(job)


def plain(world):
    job = world.slurm.submit(f"#!/bin/bash\nenv | grep -c DXPU\n{world.seen} 0\n")
    world.until_state(job, "FAILED")
    kit.hold("GPU-" not in world.slurm.said(job) and world.slurm.said(job).startswith("0\n"), "it said", world.slurm.said(job))


def never(world):
    job = world.slurm.submit(world.script(1, words="model=H900"))
    refused = lambda: world.slurm.log("slurmctld").count(f"setup for JobId={job} failed")
    for times in (1, 2):
        kit.until(lambda: f"it is refused {times} times: {world.slurm.job(job)}\n{world.slurm.logs()}", lambda: refused() == times, 120)
        kit.until(lambda: f"Slurm holds it: {world.slurm.job(job)}", lambda: world.slurm.job(job).get("Priority") == "0", 60)
        kit.hold(world.slurm.state(job) == "PENDING", "its state is", world.slurm.job(job))
        if times == 1:
            world.slurm.ask("scontrol", "release", str(job))
    kit.hold("H900" in world.slurm.log("slurmctld"), "slurmctld does not say why", world.slurm.logs())
    world.slurm.ask("scancel", str(job))
    world.until_state(job, "CANCELLED")
    kit.hold(job not in world.leases(), "it has a lease:", world.leases())


def cancelled(world):
    total = len(world.pool.gpus())
    runs = world.slurm.submit(world.script(600, gpus=2))
    world.until_running(runs)
    # More than is left: it waits in the pool's queue, not in Slurm's.
    waits = world.slurm.submit(world.script(600, gpus=total))
    kit.until(lambda: f"it waits: {world.leases()}", lambda: (world.lease(waits) or {}).get("state") == "pending", 120)
    kit.hold(world.slurm.state(waits) == "PENDING", "it was started without GPUs")
    world.slurm.ask("scancel", str(waits))
    world.until_returned(waits)
    world.slurm.ask("scancel", str(runs))
    world.until_returned(runs)
    world.until_state(runs, "CANCELLED")


# Long when the job runs for the first time, so that a busy machine does not come too late to end it, and short after that.
LONG_THEN_SHORT = "$([ ${SLURM_RESTART_COUNT:-0} = 0 ] && echo 600 || echo 1)"


def requeued(world):
    job = world.slurm.submit(world.script(LONG_THEN_SHORT))
    world.until_running(job)
    first = world.lease(job)["id"]
    world.slurm.ask("scontrol", "requeue", str(job))
    kit.until(lambda: f"the first lease is back: {world.leases()}", lambda: first not in [lease["id"] for lease in world.pool.live_leases()], 120)
    # Slurm lets a requeued job begin again after cred_expire (two minutes, 10 s here). Its operator need not wait: dxpu then holds the
    # start back for as long as slurmd would run no Prolog.
    world.until_state(job, "PENDING")
    world.slurm.ask("scontrol", "update", f"JobId={job}", "StartTime=now")
    world.until_state(job, "COMPLETED")
    world.until_returned(job)
    kit.hold(len({lease for number, lease, *_ in world.told() if number == job}) == 2, "it had one lease twice")


def hurried(world):
    """Slurm starts the job again at once, while other steps keep slurmd from forgetting its first run."""
    job = world.slurm.submit(world.script(LONG_THEN_SHORT), "--nodelist=n1")
    world.until_running(job)
    steps = world.slurm.submit("#!/bin/bash\nwhile srun --ntasks=1 true; do sleep 0.3; done\n", "--nodelist=n1", "--no-requeue")
    world.until_state(steps, "RUNNING")
    world.slurm.ask("scontrol", "requeue", str(job))
    world.until_state(job, "PENDING")
    world.slurm.ask("scontrol", "update", f"JobId={job}", "StartTime=now")
    world.until_state(job, "COMPLETED")
    world.slurm.ask("scancel", str(steps))
    world.until_returned(job)
    kit.hold(len({lease for number, lease, *_ in world.told() if number == job}) == 2, "it had one lease twice")
    world.until_state(steps, "CANCELLED")


def unattached(world):
    """The credential of the node is away while Prolog runs."""
    credential = world.slurm.node_credential
    away = credential.with_suffix(".away")
    credential.rename(away)
    try:
        job = world.slurm.submit(world.script(1), "--no-requeue")
        world.until_state(job, "FAILED")
    finally:
        away.rename(credential)
    said, node = world.slurm.said(job), world.slurm.job(job)["BatchHost"]
    for words in (f"job {job} asked for GPUs of the pool, and Prolog did not get them on node {node}. It said:", str(credential), f"scontrol requeue {job}"):
        kit.hold(words in said, "the job does not say", repr(words), "but", repr(said))
    kit.hold(f"job {job}: dxpu: " in world.slurm.log("nodes"), "the node's journal does not name the job:", world.slurm.log("nodes")[-2000:])
    world.until_returned(job)
    folder = world.slurm.folder / "run" / node / str(job)
    kit.until("the node has no files of the job", lambda: not folder.exists(), 60)


def preempted(world):
    job = world.slurm.submit(world.script(LONG_THEN_SHORT), "--nodelist=n1")
    world.until_running(job)
    first = world.lease(job)["id"]
    urgent = world.slurm.submit("#!/bin/bash\nsleep 1\n", "--partition=urgent", "--exclusive", "--nodelist=n1")
    world.until_state(urgent, "COMPLETED")
    kit.until(lambda: f"the first lease is over: {world.leases()}", lambda: (world.lease(job) or {"id": None})["id"] != first, 120)
    world.slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    world.until_state(job, "COMPLETED")
    world.until_returned(job)
    kit.hold(world.slurm.job(job)["Restarts"] == "1", "it was not preempted:", world.slurm.job(job))


def node_dies(world):
    job = world.slurm.submit(world.script(600), "--no-requeue", "--nodelist=n2")
    world.until_running(job)
    world.slurm.kill_node("n2")
    world.until_returned(job, seconds=90)
    world.until_state(job, "NODE_FAIL")
    world.slurm.start_node("n2")
    kit.until(lambda: f"the node is back: {world.slurm.ask('sinfo', '-Nho', '%N %T')}", world.slurm.is_idle_but_for_jobs, 120)
    # Its Epilog never ran, so its health check removes the tokens.
    left = world.slurm.folder / "run" / "n2" / str(job)
    kit.until(lambda: f"the node has no files of the job: {world.slurm.log('nodes')}", lambda: not left.exists(), 60)


def time_limit(world, limited):
    job, = limited
    world.until_state(job, "TIMEOUT", seconds=150)
    world.until_returned(job)
