"""Merged contexts (`dxpu worker --merged`): the fault of one program ends the contexts of all, and an online one with --survive goes on.

GPUs in software do as MPS does on a real one: a fault ends every session that is there, spares too.
"""
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time

import kit
from story_sharing import PROGRAM, ROUNDS, Program
from story_survive import sessions_of


# More than are a program's own in any case, if nothing shows that they are not.
MANY = 12
# Programs that fail again and again at the same time, and for how long.
LOOPS, LOOPS_SECONDS = 4, 12
# In place of NVIDIA's program: with -f it serves, without it takes orders.
CONTROL = """#!/bin/sh
cd "$CUDA_MPS_PIPE_DIRECTORY" || exit 3
if [ "$1" = -f ]; then
    env > "$RECORD/environment"
    echo $$ > "$RECORD/pid"
    touch control
    while [ ! -e told-to-quit ]; do sleep 0.02; done
else
    read -r order
    echo "$order" > "$RECORD/order"
    touch told-to-quit
fi
"""


def tell(record):
    record.part("the MPS daemon ends with the process that wanted it, with its keeper, and leaves nothing", keeper)
    record.part("without NVIDIA's program --merged is refused, and says what to install", not_installed)
    # Offline programs fail on purpose here, and wait after it only in a part of their own.
    with kit.Worker("--merged", "--memory", "2GiB", "--guard-memory", "1GiB", "--fault-wait-max", "0s") as worker:
        record.part("an online program outlives the faults of offline ones beside it", survives, worker)
        record.part("an online program outlives faults that come again and again", outlives_many, worker)
        record.part("its own fault is told once, after two resumes", own_fault, worker)
        record.part("without --survive a program ends with the fault of another one, and the worker says so before", unprotected, worker)
        record.part("a program that comes after a fault has a context that lives", newcomers, worker)
        # The last one: a fault of these programs may still come when they have ended.
        record.part("an online program comes back between faults that follow each other sooner than it takes to come back", not_starved, worker)
    with kit.Worker("--merged", "--memory", "2GiB", "--guard-memory", "1GiB") as worker:
        record.part("an offline program that fails again and again waits longer each time, and no other one waits", waits_longer, worker)
    with kit.Worker("--memory", "2GiB") as worker:
        record.part("without --merged a fault stays where it is", isolated, worker)


def start_keeper(*options):
    """`dxpu mps` with a script in place of NVIDIA's program. Its folder, and where the script writes."""
    place = tempfile.mkdtemp(dir=kit.scratch)
    programs, folder = os.path.join(place, "bin"), os.path.join(place, "mps")
    os.makedirs(programs)
    script = os.path.join(programs, "nvidia-cuda-mps-control")
    with open(script, "w") as file:
        file.write(CONTROL)
    os.chmod(script, 0o755)
    environment = kit.clean_environment() | {"RECORD": place, "CUDA_VISIBLE_DEVICES": "1"}
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    command = [kit.dxpu, "mps", "--folder", folder, *options]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    kit.until("the daemon takes clients", lambda: os.path.exists(os.path.join(folder, "control")))
    with open(os.path.join(place, "pid")) as file:
        return process, folder, place, int(file.read())


def keeper():
    process, folder, place, daemon = start_keeper("--ends-with-stdin")
    kit.hold(os.stat(folder).st_mode & 0o777 == 0o700, "the folder is open to others")
    with open(os.path.join(place, "environment")) as file:
        variables = dict(line.rstrip("\n").partition("=")[::2] for line in file)
    kit.hold(variables["CUDA_MPS_PIPE_DIRECTORY"] == variables["CUDA_MPS_LOG_DIRECTORY"] == folder, "its variables:", variables)
    kit.hold("CUDA_VISIBLE_DEVICES" not in variables, "a number means another GPU to a client than to its daemon")
    # As when the worker was killed: its end of the pipe is closed.
    process.stdin.close()
    kit.hold(process.wait(20) == 0, "the keeper ended with", process.returncode)
    with open(os.path.join(place, "order")) as file:
        kit.hold(file.read().startswith("quit"), "the daemon was not told to end")
    kit.hold(not kit.alive(daemon) and not os.path.exists(folder), "something is left of the daemon")

    process, folder, place, daemon = start_keeper()
    process.kill()
    process.wait()
    kit.until("the daemon ends with its keeper", lambda: not kit.alive(daemon))

    process, folder, place, daemon = start_keeper()
    os.kill(daemon, signal.SIGKILL)
    kit.hold(process.wait(20) != 0, "a keeper whose daemon died ended well")
    process.stdin.close()

    process, folder, place, daemon = start_keeper()
    process.send_signal(signal.SIGTERM)
    kit.hold(process.wait(20) == 0 and not os.path.exists(folder), "SIGTERM did not end it in order")
    process.stdin.close()


def not_installed():
    command = [kit.dxpu, "box", "--nvidia", "--guests", "1", "--guest-memory", "1GiB", "--merged", "--state-dir", tempfile.mkdtemp(dir=kit.scratch)]
    environment = kit.clean_environment() | {"PATH": "/nowhere"}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    kit.hold(done.returncode != 0 and "nvidia-compute-utils" in done.stderr, "it was told:", done.stderr)


def fail(worker):
    """An offline program that writes where no memory is."""
    with Program(worker, "illegal", "offline") as wrong:
        _, text = wrong.process.communicate("\n", timeout=30)
        kit.hold("error 700" in text, "it wrote where no memory is, and heard:", text[-300:])


def survives(worker):
    with Program(worker, "online", "online", "--survive") as online:
        began = time.monotonic()
        online.order(do="online", gap_us=20_000, seconds=600, stop=True)
        for _ in range(ROUNDS):
            before = len(sessions_of(worker, online.process.pid))
            fail(worker)
            kit.until("it goes on in another session", lambda: len(sessions_of(worker, online.process.pid)) > before, 30)
            time.sleep(1)
        online.order(do="stop")
        answer = online.answer()
        spent = time.monotonic() - began
        kit.hold(answer["arrivals"][-1] > began + spent - 5, "the online program stood still at the end")


def outlives_many(worker):
    worker.environment["DXPU_LOG"] = "debug"
    with Program(worker, "online", "online", "--survive") as online:
        del worker.environment["DXPU_LOG"]
        online.order(do="online", gap_us=20_000, seconds=600, stop=True)
        for _ in range(MANY):
            before = len(sessions_of(worker, online.process.pid))
            fail(worker)
            kit.until("it goes on in another session", lambda: len(sessions_of(worker, online.process.pid)) > before, 30)
        online.order(do="stop")
        online.answer()
        online.process.stdin.close()
        # Images show that all is well, too; a worker that says so does it sooner.
        count = online.process.stderr.read().count("all work since another session took over has ended well")
        kit.hold(count >= MANY // 2, "so often it heard that all work had ended well:", count)


def not_starved(worker):
    """Several programs fail in a loop, so that the next one is ready to fail while the online one is on its way back."""
    ends, faults = time.monotonic() + LOOPS_SECONDS, [0] * LOOPS

    def loop(at):
        while time.monotonic() < ends:
            command = worker.command([sys.executable, PROGRAM, "illegal"], options=("--class", "offline"))
            failed = subprocess.run(command, env=worker.environment, input="\n", capture_output=True, text=True, timeout=60)
            faults[at] += "error" in failed.stderr

    with Program(worker, "online", "online", "--survive") as online:
        online.order(do="online", gap_us=20_000, seconds=600, stop=True)
        threads = [threading.Thread(target=loop, args=(at,)) for at in range(LOOPS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        online.order(do="stop")
        answer = online.answer()
    done = [at + us / 1e6 for at, us in zip(answer["arrivals"], answer["latencies_us"])]
    longest = max(later - earlier for earlier, later in zip(done, done[1:]))
    kit.hold(sum(faults) >= LOOPS, "there were", faults, "faults alone")
    kit.hold(answer["right"] and longest < LOOPS_SECONDS / 2, "for", longest, "s no request of the online program ended;", faults, "faults")
    return f"{sum(faults)} faults in {LOOPS_SECONDS} s; the longest time without an answer was {longest:.1f} s"


def own_fault(worker):
    for given_class in ("online", "dedicated"):
        with Program(worker, "illegal", given_class, "--survive") as wrong:
            _, text = wrong.process.communicate("\n", timeout=60)
            kit.hold(wrong.process.returncode != 0, "it failed and ended well")
            errors = re.findall(r"RuntimeError: .*", text)
            kit.hold(errors == ["RuntimeError: cuCtxSynchronize: error 700"], "it heard:", text[-800:])
            kit.hold("the fault is its own" in text, "the reason is not told:", text[-800:])
            count = len(sessions_of(worker, wrong.process.pid))
            kit.hold(count == 3, "sessions that it had:", count)


def unprotected(worker):
    with Program(worker, "online", "online") as online:
        online.order(do="online", gap_us=20_000, seconds=600, stop=True)
        kit.until("the worker warns", lambda: "an online program is not protected" in worker.log())
        fail(worker)
        # Its input stays open: the end of it would tell the program to stop, and it may be quicker than the fault.
        heard, _, _ = select.select([online.process.stdout], [], [], 20)
        kit.hold(heard, "it did not notice that its context is gone")
        text = online.process.stdout.readline()
        kit.hold("error" in text or online.process.wait(20) != 0, "it noticed nothing:", text[-300:])


def newcomers(worker):
    for _ in range(3 * ROUNDS):
        fail(worker)
        # At once: the spares of before the fault are dead or on their way out.
        with Program(worker, "offline", "offline") as offline:
            offline.order(do="offline", work="product", seconds=0.1)
            offline.answer()


def waits_longer(worker):
    waited = re.compile(r"this offline program waits for (\d+) s before it uses the GPU: (\d+) faults? ")
    with Program(worker, "online", "online", "--survive") as online:
        online.order(do="online", gap_us=20_000, seconds=600, stop=True)
        told = []
        for number in range(5):
            with Program(worker, "illegal", "offline") as wrong:
                began = time.monotonic()
                _, text = wrong.process.communicate("\n", timeout=60)
                kit.hold("error 700" in text, "it wrote where no memory is, and heard:", text[-300:])
                found = waited.search(text)
                told.append(found and (int(found[1]), int(found[2])))
                kit.hold(not found or time.monotonic() - began > int(found[1]) - 1, "it did not wait as it said:", text[-300:])
        # The fault of attempt N is followed by 2^(N-1) s. A program takes some of them to begin, so the first may not have to wait.
        kit.hold(told[0] is None, "it waited although nothing had failed:", told)
        kit.hold(told[4] and told[4][1] == 4 and 4 <= told[4][0] <= 8, "after four faults it waited:", told)
        # At this moment offline programs wait for 16 s.
        with Program(worker, "online", "online") as other:
            began = time.monotonic()
            other.order(do="online", gap_us=20_000, seconds=0.1)
            other.answer()
            kit.hold(time.monotonic() - began < 8, "an online program waited, too:", time.monotonic() - began)
        online.order(do="stop")
        online.answer()
    # No online program is there any more that has to be protected.
    began = time.monotonic()
    with Program(worker, "offline", "offline") as offline:
        offline.order(do="offline", work="product", seconds=0.1)
        offline.answer()
    kit.hold(time.monotonic() - began < 8, "it waited for nobody:", time.monotonic() - began)


def isolated(worker):
    with Program(worker, "online", "online") as online:
        online.order(do="online", gap_us=20_000, seconds=600, stop=True)
        fail(worker)
        online.order(do="stop")
        online.answer()
        kit.hold(len(sessions_of(worker, online.process.pid)) == 1, "it had more than one session")
