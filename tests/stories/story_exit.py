"""Ways to end: with work in flight, from anywhere, by a signal. The code is the program's, and nothing stays behind."""
import os
import signal
import subprocess

import kit

WAYS = (
    "plain",
    "in_flight",
    "in_flight_quick",
    "from_a_thread",
    "while_threads_call",
    "in_a_host_function",
    "after_dlclose",
    "calls_at_exit",
    "calls_at_exit_registered_first",
)


def tell(record):
    with kit.Worker() as worker:
        for way in WAYS:
            record.part(way, ends, worker, way)
        record.part("codes 0, 3 and 255", codes, worker)
        record.part("signals that end the program", deadly_signals, worker)
        record.part("signals that the program catches", caught_signals, worker)
        record.part("standard input and output", echo, worker)
        record.part("programs that cannot be started", not_started, worker)
        record.part("the worker's log tells a good end from a crash", log_tells, worker)
        record.part("exit while the worker is frozen", worker_is_frozen, worker)


def ends(worker, way):
    with worker.left_as_found():
        for scheme in kit.SCHEMES:
            result = worker.run(kit.program("exits"), way, 42, scheme=scheme, seconds=20)
            kit.hold(result.returncode == 42, way, "over", scheme, "ended with", result.returncode, result.stderr)
            kit.hold(result.stderr == "", "it wrote", result.stderr)
            kit.hold(result.stdout == ("at exit\n" if "calls" in way and "threads" not in way else ""), result.stdout)


def codes(worker):
    for code in (0, 3, 255):
        worker.must(kit.program("exits"), "plain", code, code=code)
        worker.must("sh", "-c", f"exit {code}", code=code)


def deadly_signals(worker):
    with worker.left_as_found():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            with worker.start(kit.program("exits"), "wait") as program:
                program.wait_for("waiting")
                program.process.send_signal(number)
                # As the parent of `dxpu run` sees it; a shell shows it as 128 + n.
                program.ends(-number, 5)
        words = worker.command(["sh", "-c", "kill -TERM $$"])
        result = worker.run("sh", "-c", '"$@"; echo $?', "sh", *words)
        kit.hold(result.stdout == "143\n", "a shell sees", result.stdout)


def caught_signals(worker):
    for number in (signal.SIGTERM, signal.SIGINT):
        with worker.start(kit.program("exits"), "catch") as program:
            program.wait_for("waiting")
            program.process.send_signal(number)
            program.ends(100 + number, 5)
            kit.hold("signal\n" in program.said(), "the handler did not run:", program.said())


def echo(worker):
    text = "".join(f"line {n} \x01 äöü\n" for n in range(20000))
    result = worker.run(kit.program("exits"), "echo", stdin=None, input=text)
    kit.hold(result.stdout == text, "the input came back changed:", len(result.stdout), "of", len(text))
    kit.hold(result.stderr == "", "it wrote", result.stderr)


def log_tells(worker):
    for arguments, signal_sent, end in ((["plain"], None, "Finished"), (["wait"], signal.SIGKILL, "PeerLost")):
        with worker.start(kit.program("exits"), *arguments) as program:
            if signal_sent:
                program.wait_for("waiting")
                program.process.send_signal(signal_sent)
            program.process.wait(20)
            ended = f"session ended pid={worker.session_of(program.pid)} "
            lines = lambda: [line for line in worker.log().splitlines() if ended in line]
            kit.until("the end is logged", lines, 5)
            kit.hold(f"end={end} " in lines()[0], "not", end, "but", lines()[0])


def worker_is_frozen(worker):
    """A program that ends has nothing to wait for."""
    command = worker.command([kit.program("exits"), "until_eof", 9])
    program = subprocess.Popen(command, env=worker.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        kit.hold(program.stdout.readline() == b"ready\n", "the program does not get ready")
        session = worker.session_of(program.pid)
        os.kill(session, signal.SIGSTOP)
        try:
            program.stdin.close()
            kit.until("the program ends", lambda: program.poll() is not None, 3)
        finally:
            os.kill(session, signal.SIGCONT)
        kit.hold(program.returncode == 9, "it ended with", program.returncode)
        kit.until("its session ends", lambda: not kit.alive(session), 5)
    finally:
        program.kill()
        program.wait()
        program.stdout.close()


def not_started(worker):
    missing = worker.run("no-such-program")
    kit.hold(missing.returncode == 127 and "there is no program" in missing.stderr, missing)
    refused = worker.run(worker.token_file)
    kit.hold(refused.returncode == 126 and "cannot be started" in refused.stderr, refused)
