"""A box whose disk is full, or read-only, for a while: what runs goes on, nothing is lent that nobody could use, an operator
sees why, and when the disk takes files again everything is as before without anybody's help.

The disk is a tmpfs of 1 MiB in a mount namespace of its own, which needs root.
"""
import contextlib
import json
import os
import signal
import subprocess

import kit
from pool import Box, Pool

DISK_BYTES = 1 << 20
# A mute worker is given up after 20 s; two cores may be slow beside that.
MUTE_SECONDS = 90


def tell(record):
    if not can_mount():
        print("  SKIPPED story disk: it mounts file systems, which needs root (and a kernel that lets it)", flush=True)
        return
    with Pool() as pool, SmallBox(pool, "small") as box:
        record.part("a program runs while the disk is full", runs_while_full, pool, box)
        record.part("a full disk: not lent, seen, and lent again when there is room", full, pool, box)
        record.part("a word that could not be written is written when there is room", word, pool, box)
        record.part("a worker that stays mute is started again", mute, pool, box)
        record.part("a read-only disk", read_only, pool, box)


def can_mount():
    return subprocess.run(["unshare", "-m", "true"], stderr=subprocess.DEVNULL).returncode == 0


class SmallBox(Box):
    """A box with one soft GPU whose state lies on a tmpfs that only it sees."""

    def __init__(self, pool, name):
        folder = pool.file(name)
        script = f"mount -t tmpfs -o size={DISK_BYTES},mode=700 small '{folder}' && echo there && exec sleep infinity"
        os.makedirs(folder, mode=0o700)
        self.holder = subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        kit.hold(self.holder.stdout.readline() == "there\n", "no tmpfs can be mounted")
        self.folder = folder
        self.pool, self.name, self.options = pool, name, ()
        self.state = f"/proc/{self.holder.pid}/root{folder}"
        self.invitation = pool.file(f"{name}.json")
        kit.hold(pool.token(f"box/{name}", self.invitation), "no invitation:", pool.last.stderr)
        pool.boxes.append(self)
        self.start()

    def inside(self, *words):
        return ["nsenter", "-t", str(self.holder.pid), "-m", "--", *words]

    def start(self):
        command = self.inside(kit.dxpu, "box", "--join-token-file", self.invitation, "--name", self.name, "--state-dir", self.folder,
                              "--listen", "127.0.0.1", "--soft", "1")
        with open(self.pool.file("small.log"), "ab") as log:
            self.process = subprocess.Popen(command, env=self.pool.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def log(self):
        return self.pool.read("small.log")

    def process_of_worker(self):
        """Also of one that has not said so."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/cmdline") as file:
                    words = file.read().split("\0")
                if words[1:2] == ["worker"] and f"{self.folder}/slot-0" in words and kit.alive(int(pid)):
                    return int(pid)
        return None

    def fill(self):
        """To the last byte."""
        with contextlib.suppress(OSError), open(self.file("ballast"), "ab", buffering=0) as file:
            while True:
                file.write(b"x" * 1024)
        kit.hold(os.statvfs(self.state).f_bavail == 0, "the disk is not full")

    def free(self):
        os.remove(self.file("ballast"))

    def make_read_only(self):
        """As a kernel does that met an error: what is open stays open, and no file is opened for writing any more."""
        for words in (["mount", "--bind", self.folder, self.folder], ["mount", "-o", "remount,bind,ro", self.folder]):
            subprocess.run(self.inside(*words), check=True)

    def make_writable(self):
        subprocess.run(self.inside("umount", self.folder), check=True)

    def gpu(self):
        return self.pool.gpus().get("small/0", {})

    def why(self):
        return self.gpu().get("unready", "")

    def until_ready(self, seconds=60):
        kit.until(lambda: f"the GPU is ready: {self.gpu()}\n{self.log()[-3000:]}",
                  lambda: self.gpu().get("state") == "free" and not self.why(), seconds)

    def until_unready(self, words):
        kit.until(lambda: f"an operator sees {words!r}: {self.gpu()}\n{self.log()[-3000:]}", lambda: words in self.why(), 30)

    def end(self):
        workers = {self.process_of_worker()} - {None}
        super().end()
        for pid in workers | ({self.process_of_worker()} - {None}):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
        self.pool.boxes.remove(self)
        self.holder.kill()
        self.holder.wait()


def runs(pool, *options):
    """A borrower's program, from the lease to the last byte."""
    return pool.must(kit.program("free_memory"), options=options)


def pending(pool):
    """A lease that waits: it gets no GPU that it could not use."""
    done = pool.ask("lease", "create", "--ttl", "60s", "-o", "json", credential=pool.borrower)
    kit.hold(done.returncode == 0, done.stdout, done.stderr)
    lease = json.loads(done.stdout)
    kit.hold(lease["state"] == "pending", "lent although nobody could use it:", lease)
    return lease["id"]


def lease_state(pool, lease):
    return pool.leases()[lease]["state"]


def granted(pool, box, lease):
    kit.until(lambda: f"{lease} is granted: {pool.leases()[lease]} {box.gpu()}\n{box.log()[-3000:]}",
              lambda: lease_state(pool, lease) == "granted", 60)


def release(pool, box, lease):
    pool.ask("lease", "release", lease, credential=pool.borrower)
    box.until_ready()


def runs_while_full(pool, box):
    box.until_ready()
    runs(pool)
    box.until_ready()
    with pool.borrow(kit.program("steady")) as steady:
        steady.wait_for("working")
        box.fill()
        worker = box.process_of_worker()
        box.until_unready("No space left")
        # Its worker writes a line for each program that comes and goes, to a log on that disk.
        lease = next(iter(pool.live_leases()))["id"]
        for _ in range(3):
            with kit.Client([kit.dxpu, "run", "--lease", lease, "--", kit.program("free_memory")],
                            pool.environment | {"DXPU_CREDENTIAL": pool.borrower}) as beside:
                beside.ends(0)
        kit.hold(box.process_of_worker() == worker, "the worker died of a log that it could not write")
        steady.process.send_signal(signal.SIGTERM)
        steady.ends(0)
    box.free()
    box.until_ready()
    kit.hold(box.log().count("cannot do what must be done") <= 3, "it goes on and on about it:", box.log()[-3000:])


def full(pool, box):
    box.fill()
    box.until_unready("No space left")
    os.kill(box.process_of_worker(), signal.SIGKILL)
    lease = pending(pool)
    kit.until(lambda: f"somebody says why: {pool.ask('lease', 'explain', lease).stdout}",
              lambda: "worker that a borrower could find" in pool.ask("lease", "explain", lease).stdout)
    kit.hold("No space left" in pool.ask("gpu", "ls").stdout, "dxpu gpu ls does not say why")
    box.free()
    granted(pool, box, lease)
    with kit.Client([kit.dxpu, "run", "--lease", lease, "--", kit.program("free_memory")],
                    pool.environment | {"DXPU_CREDENTIAL": pool.borrower}) as program:
        program.ends(0)
    release(pool, box, lease)
    kit.hold(box.gpu()["health"]["ok"], "a full disk is nothing to repair:", box.gpu())


def word(pool, box):
    """As when the disk was full at the moment in which the worker had something to say."""
    worker = box.process_of_worker()
    box.fill()
    os.remove(box.file("slot-0/worker.json"))
    box.fill()
    # A new agent knows only what it reads; the worker outlives the one before.
    box.process.send_signal(signal.SIGTERM)
    box.process.wait(20)
    kit.until("the word is gone", lambda: not os.path.exists(box.file("slot-0/worker.json")))
    box.start()
    box.until_unready("No space left")
    lease = pending(pool)
    box.free()
    granted(pool, box, lease)
    kit.hold(box.process_of_worker() == worker, "the same worker serves on")
    release(pool, box, lease)


def mute(pool, box):
    """Its word cannot be written although there is room: whatever it is, another worker may do better."""
    path = box.file("slot-0/worker.json")
    os.kill(box.process_of_worker(), signal.SIGKILL)
    os.remove(path)
    os.mkdir(path)
    box.until_unready("has not said yet where it is")
    first = box.process_of_worker()
    kit.until(lambda: f"another worker: {box.process_of_worker()} {box.log()[-2000:]}",
              lambda: box.process_of_worker() not in (first, None), MUTE_SECONDS)
    kit.hold("a mute worker is ended" in box.log(), "nobody says so")
    os.rmdir(path)
    box.until_ready()
    runs(pool)
    box.until_ready()
    kit.hold(box.gpu()["health"]["ok"], "nothing is to be repaired:", box.gpu())


def read_only(pool, box):
    with pool.borrow(kit.program("steady")) as steady:
        steady.wait_for("working")
        box.make_read_only()
        box.until_unready("Read-only file system")
        steady.process.send_signal(signal.SIGTERM)
        steady.ends(0)
    lease = pending(pool)
    box.make_writable()
    granted(pool, box, lease)
    release(pool, box, lease)
    runs(pool)
