"""Clients, sessions and workers that die or freeze in the middle of work, again and again.

The peer that is left notices it, ends with an error instead of a hang, and nothing stays behind. A death is noticed by the
closed connection; a frozen peer is noticed by its silence.
"""
import os
import random
import signal
import subprocess
import time

import kit

TIMES = 100
AT_ONCE = 4
# Frozen processes need no processor: more of them at once.
FROZEN_AT_ONCE = 10
LISTENERS = 8
PRINTING = 20
# How long a peer may be silent before it counts as lost, where peers freeze.
STALL = 1.0
# The same where processes die: longer than the story waits for anything. So a death is noticed by the closed
# connection, not by silence, however late a loaded machine is.
NEVER = 10 * kit.HANG_SECONDS
random_source = random.Random(20260101)


def tell(record):
    with kit.Worker("--memory", "8GiB", "--stall-timeout", f"{NEVER}s") as worker:
        free = worker.free_memory()
        with worker.start(kit.program("load"), 1, 0, scheme="unix") as neighbour:
            neighbour.wait_for("working")
            record.part(f"kill -9 of the client, {TIMES} times", many, worker, client_dies, AT_ONCE, 1, NEVER)
            record.part(f"kill -9 of the session, {TIMES} times", many, worker, session_dies, AT_ONCE, 1, NEVER)
            frozen = (session_freezes, FROZEN_AT_ONCE, 1, STALL)
            record.part(f"a frozen session, {TIMES} times", many, worker, *frozen)
            record.part(f"a session frozen while it prints, {PRINTING} times", printing, worker)
            record.part("the neighbour worked on meanwhile", works_on, neighbour)
        record.part("all device memory is back, to the byte", worker.memory_is_back, free)
    with kit.Worker("--memory", "8GiB", "--stall-timeout", f"{STALL}s") as worker:
        record.part(f"a frozen client, {TIMES} times", many, worker, client_freezes, FROZEN_AT_ONCE, 0, NEVER)
        record.part("a program whose output waits is not frozen", output_waits, worker)
    record.part(f"kill -9 of the listening worker, {LISTENERS} times", listener_dies)


def works_on(neighbour):
    kit.hold(neighbour.process.poll() is None, "the neighbour ended:", neighbour.said())


def many(worker, once, at_once, neighbours, stall):
    def one(number):
        with start_busy(worker, kit.SCHEMES[number % len(kit.SCHEMES)], stall) as client:
            session = worker.session_of(client.pid)
            kit.hold(session, "the log names no session of process", client.pid)
            # Not always at the same place of its work.
            time.sleep(random_source.random() * 0.05)
            return once(worker, client, session)

    with worker.left_as_found(neighbours=neighbours):
        taken = kit.each(TIMES, one, at_once)
    return f"noticed after {sum(taken) / len(taken) * 1000:.0f} ms on average, {max(taken) * 1000:.0f} ms at worst"


def start_busy(worker, scheme, stall):
    """A program at work that takes its worker for lost after so long a silence."""
    client = worker.start(
        kit.program("load"), 2, 0, scheme=scheme, environment={"DXPU_STALL_TIMEOUT": f"{stall}s"}
    )
    client.wait_for("working")
    return client


def client_dies(_, client, session):
    client.process.kill()
    return kit.until("the session of a dead client ends", lambda: not kit.alive(session), kit.HANG_SECONDS)


def session_dies(_, client, session):
    os.kill(session, signal.SIGKILL)
    return client.ends(7)


def session_freezes(_, client, session):
    os.kill(session, signal.SIGSTOP)
    try:
        taken = client.ends(7)
    finally:
        os.kill(session, signal.SIGCONT)
    noticed_by_silence(taken)
    kit.until(
        "a session that woke to find its client gone ends", lambda: not kit.alive(session), kit.HANG_SECONDS
    )
    return taken


def noticed_by_silence(taken):
    """The peer was frozen after it had spoken last, so its silence is not over before most of STALL has passed."""
    kit.hold(taken > STALL / 2, "a frozen peer counted as lost after", taken, "s")


def printing(worker):
    """Text is many bytes on the connection that the heartbeat uses too: it stops in the middle of a message."""

    def one(number):
        with worker.start(
            kit.program("load"), 0, 0, scheme=kit.SCHEMES[number % 4], environment={"DXPU_STALL_TIMEOUT": f"{STALL}s"}
        ) as client:
            client.wait_for("working")
            time.sleep(random_source.random() * 0.05)
            return session_freezes(worker, client, worker.session_of(client.pid))

    with worker.left_as_found(neighbours=1):
        taken = kit.each(PRINTING, one, AT_ONCE)
    return f"noticed after {max(taken) * 1000:.0f} ms at worst"


def client_freezes(_, client, session):
    os.kill(client.pid, signal.SIGSTOP)
    try:
        taken = kit.until("the session of a frozen client ends", lambda: not kit.alive(session), kit.HANG_SECONDS)
    finally:
        os.kill(client.pid, signal.SIGCONT)
    noticed_by_silence(taken)
    client.ends(7)
    return taken


def output_waits(worker):
    """A kernel's text goes into a pipe that nobody reads for longer than the worker waits for a sign of life."""
    command = worker.command([kit.program("load"), 0, 0])
    program = subprocess.Popen(command, env=worker.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        kit.until("its session begins", lambda: worker.session_of(program.pid))
        session = worker.session_of(program.pid)
        time.sleep(3 * STALL)
        kit.hold(kit.alive(session), "the session ended:", worker.log()[-300:])
        text = program.stdout.read(4 << 20).decode()
        kit.hold(text.count("the kernel says") > 100000, "the text is not whole:", text[:200])
        kit.hold(kit.alive(session), "the session ended:", worker.log()[-300:])
    finally:
        program.kill()
        program.communicate()


def listener_dies():
    def one(number):
        with kit.Worker() as worker:
            scheme = kit.SCHEMES[number % len(kit.SCHEMES)]
            with start_busy(worker, scheme, NEVER) as first, start_busy(worker, scheme, NEVER) as second:
                children = worker.children()
                worker.process.kill()
                is_over = lambda: not any(map(kit.alive, children))
                kit.until("sessions end with their worker", is_over, kit.HANG_SECONDS)
                return max(client.ends(7) for client in (first, second))

    taken = kit.each(LISTENERS, one, 2)
    return f"clients ended after {max(taken) * 1000:.0f} ms at worst"
