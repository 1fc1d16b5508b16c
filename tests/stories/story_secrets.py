"""Secrets stay where they belong: in no core dump, at no stranger's socket; and programs are left as they are."""
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import kit

NOBODY = 65534


def tell(record):
    record.part("a worker that crashes leaves no core", no_core)
    with kit.Worker() as worker:
        record.part("its processes have no core files either", limits, worker)
        record.part("a program under dxpu run dumps core as it always did", program_as_it_was, worker)
        if os.geteuid() == 0:
            record.part("no token for another user's socket", other_users_socket, worker)


def crash(allowed):
    """Whether a worker that gets SIGABRT leaves a core, where cores may have any size."""
    directory = os.path.join(kit.scratch, f"crash-{allowed}")
    os.makedirs(directory)
    environment = kit.clean_environment() | {"XDG_STATE_HOME": directory, "XDG_CACHE_HOME": os.path.join(kit.scratch, "cache")}
    if allowed:
        environment["DXPU_CORE_DUMPS"] = "1"
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    command = [kit.dxpu, "worker", "--listen", f"unix:{directory}/socket"]
    with open(os.path.join(directory, "log"), "wb") as log:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=directory,
            stdout=log,
            stderr=log,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (hard, hard)),
        )
    kit.until("the worker listens", lambda: os.path.exists(f"{directory}/socket"))
    time.sleep(0.2)
    process.send_signal(signal.SIGABRT)
    _, status = os.waitpid(process.pid, 0)
    process.returncode = 0
    kit.hold(os.WIFSIGNALED(status), "it did not crash:", status)
    for name in os.listdir(directory):
        if name.startswith("core"):
            os.remove(os.path.join(directory, name))
    return os.WCOREDUMP(status)


def no_core():
    kit.hold(not crash(allowed=False), "it left a core")
    return "with DXPU_CORE_DUMPS=1 it leaves one" if crash(allowed=True) else "this machine keeps no cores at all"


def limits(worker):
    for pid in [worker.pid, *worker.children()]:
        with open(f"/proc/{pid}/limits") as text:
            core = next(line.split()[4] for line in text if line.startswith("Max core file size"))
        kit.hold(core == "0", "process", pid, "may write cores of", core)


LOOK = "import ctypes, resource; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), *resource.getrlimit(resource.RLIMIT_CORE))"


def program_as_it_was(worker):
    plain = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True).stdout
    under = worker.must(sys.executable, "-c", LOOK)
    kit.hold(under == plain, "a program has", under, "under dxpu run and", plain, "without")
    kit.hold(under.startswith("1 "), "it is not dumpable:", under)


def other_users_socket(worker):
    """Somebody else listens where a worker is said to be: he hears not a byte."""
    # Not in the stories' own directory, which only we may enter.
    directory = tempfile.mkdtemp(prefix="dxpu-strange-")
    os.chown(directory, NOBODY, NOBODY)
    path = os.path.join(directory, "socket")
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(write_end, b"heard %d" % len(hear_one(path)))
        finally:
            os._exit(0)
    os.close(write_end)
    try:
        kit.until("somebody listens", lambda: os.path.exists(path))
        time.sleep(0.1)
        command = [kit.dxpu, "run", "--worker", f"unix:{path}", "--token-file", worker.token_file, "--", "true"]
        end = kit.run_plainly(command, worker.environment)
        kit.hold(end.returncode == 65 and f"user {NOBODY}" in end.stderr, end.returncode, end.stderr)
        kit.hold("DXPU_WORKER_UID" in end.stderr, end.stderr)
        heard = os.read(read_end, 100)
        kit.hold(heard == b"heard 0", "he", heard)
    finally:
        os.close(read_end)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        shutil.rmtree(directory)


def hear_one(path):
    """All that the first client says who comes there."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.settimeout(30)
        client, _ = listener.accept()
        client.settimeout(10)
        heard = b""
        while piece := client.recv(4096):
            heard += piece
        return heard
