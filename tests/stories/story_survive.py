"""Programs that outlive the sessions of their worker (`dxpu run --survive`): no error, no wrong result.

The programs check every result themselves: copies of all kinds, kernels on several streams, events, host functions
and modules, from two threads. Sessions are killed while they work, and again while the next one is brought back.
"""
import contextlib
import os
import random
import re
import signal
import time

import kit

PROGRAMS = 16
AT_ONCE = 2
KILLS = 3
FROZEN = 4
STALL = 1.0
ROUNDS = 200
random_source = random.Random(20261116)


def tell(record):
    with kit.Worker("--memory", "8GiB") as worker:
        free = worker.free_memory()
        record.part(f"{PROGRAMS} programs, {KILLS} sessions of each killed", killed, worker)
        record.part(f"{FROZEN} programs with a frozen session", frozen, worker)
        record.part("without --survive a killed session is an error", without, worker)
        record.part("all device memory is back, to the byte", worker.memory_is_back, free)
    with kit.Worker("--memory", "8GiB", "--guard-memory", "2GiB") as worker:
        free = worker.free_memory()
        record.part(f"with a guardian: {PROGRAMS} programs, {KILLS} sessions of each killed", killed, worker)
        record.part("with a guardian: it is killed, then a session, then both", guardian_killed, worker)
        record.part("all device memory is back, to the byte", worker.memory_is_back, free)
    record.part("a worker is killed: its program goes on at another one", standby)
    record.part("no worker to resume in: an error, not a hang", worker_gone)


def sessions_of(worker, pid):
    """The processes that have served this client, the latest last; at least one."""
    kit.hold(worker.session_of(pid), "the log names no session of process", pid)
    lines = (line for line in worker.log().splitlines() if f"(process {pid})" in line and "session began" in line)
    return [int(re.search(r" pid=(\d+)", line)[1]) for line in lines]


def start(worker, scheme, rounds=ROUNDS, patience="60s"):
    client = worker.start(
        kit.program("load"),
        2,
        rounds,
        scheme=scheme,
        options=("--survive",),
        environment={"DXPU_STALL_TIMEOUT": f"{STALL}s", "DXPU_PATIENCE": patience},
    )
    client.wait_for("working")
    return client


def killed(worker):
    def one(number):
        with start(worker, kit.SCHEMES[number % len(kit.SCHEMES)]) as client:
            kills = 0
            while kills < KILLS and client.process.poll() is None:
                # Not always at the same place of its work, and sometimes before the next session is through.
                time.sleep(random_source.random() * 0.2)
                session = sessions_of(worker, client.pid)[-1]
                if kit.alive(session):
                    os.kill(session, signal.SIGKILL)
                    kills += 1
            client.ends(0)
            said = client.said()
            kit.hold("all right" in said, said)
            kit.hold(kills == 0 or "goes on in another session" in said, kills, "kills and no word of it:", said)
            return kills

    kills = kit.each(PROGRAMS, one, AT_ONCE)
    kit.hold(sum(kills) >= PROGRAMS, "only", sum(kills), "sessions could be killed: the programs are too short")
    return f"{sum(kills)} sessions killed, all results right"


def guardian_of(worker):
    """The process that keeps images; another one is started when it dies."""
    for pid in worker.children():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/cmdline") as words:
            if "guardian" in words.read().split("\0"):
                return pid
    return None


def guardian_killed(worker):
    """Losing images costs protection, never a result: a program ends well, or is told that its image is lost."""
    with start(worker, "tcp") as client:
        for what in ("guardian", "session", "both"):
            time.sleep(0.7)
            kit.until("the worker has a guardian", lambda: guardian_of(worker))
            guardian, session = guardian_of(worker), sessions_of(worker, client.pid)[-1]
            if client.process.poll() is not None:
                break
            if what != "session":
                os.kill(guardian, signal.SIGKILL)
            if what != "guardian" and kit.alive(session):
                os.kill(session, signal.SIGKILL)
        code = client.process.wait(kit.HANG_SECONDS)
        said = client.said()
        kit.hold(("all right" in said) if code == 0 else ("is lost" in said), "ended with", code, said)
        return "all results right" if code == 0 else "told that its image is lost"


def standby():
    """The first of two workers is killed with all its sessions."""
    with kit.Worker("--memory", "8GiB") as other, kit.Worker("--memory", "8GiB", "--token-file", other.token_file) as worker:
        environment = {"DXPU_STANDBY": other.addresses["unix"], "DXPU_STALL_TIMEOUT": f"{STALL}s"}
        with worker.start(kit.program("load"), 2, ROUNDS, options=("--survive",), environment=environment) as client:
            client.wait_for("working")
            sessions = sessions_of(worker, client.pid)
            worker.process.kill()
            for session in filter(kit.alive, sessions):
                os.kill(session, signal.SIGKILL)
            client.ends(0)
            kit.hold("all right" in client.said(), client.said())
            sessions_of(other, client.pid)


def frozen(worker):
    def one(number):
        with start(worker, kit.SCHEMES[number % len(kit.SCHEMES)]) as client:
            session = sessions_of(worker, client.pid)[-1]
            os.kill(session, signal.SIGSTOP)
            try:
                client.ends(0)
            finally:
                os.kill(session, signal.SIGCONT)
            kit.hold("all right" in client.said(), client.said())

    kit.each(FROZEN, one, AT_ONCE)


def without(worker):
    with worker.start(kit.program("load"), 2, 0, scheme="unix") as client:
        client.wait_for("working")
        os.kill(worker.session_of(client.pid), signal.SIGKILL)
        client.ends(7)


def worker_gone():
    with kit.Worker("--memory", "8GiB") as worker:
        with start(worker, "unix", rounds=0, patience="2s") as client:
            for session in sessions_of(worker, client.pid):
                os.kill(session, signal.SIGKILL)
            worker.process.kill()
            worker.process.wait()
            # The library looks for another session for as long as it has patience, then says so.
            client.ends(7)
            kit.hold("is lost" in client.said(), client.said())
