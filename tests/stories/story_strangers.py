"""A thousand strangers of each kind at the worker's door, and programs that come meanwhile: all of them get in."""
import contextlib
import os
import re
import resource
import selectors
import socket
import ssl
import struct
import threading
import time

import kit
from story_hostile import SCHEME_NUMBER, preamble

# Each kind keeps as many at the door as it lets in, and comes again when it is turned away.
STRANGERS = 1000
# What a program may take to start at the worst; the aim is a second. A busy machine is slow at everything.
GETS_IN_WITHIN = 10
# The whole crowd may leave so much in the log: refusals are counted.
LOG_BYTES_MAX = 256 << 10
# Connections that have not shown a token, for each of the worker's four addresses, and what it needs beside them.
DESCRIPTORS_MAX = 4 * 256 + 200
DOOR = 4
BURST = int(os.environ.get("DXPU_BURST", "100"))


def tell(record):
    wanted = STRANGERS + 500
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    with kit.Worker() as worker:
        with worker.left_as_found(seconds=40):
            for name, kind in KINDS.items():
                record.part(f"{STRANGERS} strangers: {name}", besieged, worker, kind)
        record.part("the log stays small and says how many", log_is_small, worker)
    with kit.Worker() as worker:
        record.part(f"{BURST} programs at once", burst, worker)
        record.part("a program that finds no session says so when it gives up", gives_up)


def silent(_):
    return b"", ()


def preamble_only(scheme):
    return preamble(kind=DOOR, scheme=SCHEME_NUMBER[scheme]), ()


def session_without_token(scheme):
    return preamble(kind=0, scheme=SCHEME_NUMBER[scheme]), ()


def byte_by_byte(scheme):
    first = preamble(kind=DOOR, scheme=SCHEME_NUMBER[scheme])
    return first[:1], [first[at : at + 1] for at in range(1, len(first))]


def tls_hello_only(scheme):
    out = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    return preamble(kind=DOOR, scheme=SCHEME_NUMBER[scheme]) + out.read(), ()


def wrong_token(scheme):
    token = os.urandom(16).hex().encode()
    knock = b"\x06" + struct.pack("<HI", 2, len(token)) + token + b"\x01"
    return preamble(kind=DOOR, scheme=SCHEME_NUMBER[scheme]) + struct.pack("<I", len(knock)) + knock, ()


# What a stranger says at once and what it says later, one word at a time; and where it comes: to few addresses, so that
# there are more than each of them holds.
KINDS = {
    "silent": (silent, ("tls", "unix")),
    "a preamble and no more": (preamble_only, ("tls", "unix")),
    "a session wanted, no token shown": (session_without_token, kit.SCHEMES),
    "byte by byte": (byte_by_byte, ("tls", "shm")),
    "a TLS hello and no more": (tls_hello_only, ("tls",)),
    "a wrong token": (wrong_token, ("tcp", "unix")),
}


class Crowd(threading.Thread):
    """Keeps strangers at the door until it is stopped."""

    def __init__(self, worker, kind):
        super().__init__()
        self.worker = worker
        self.say, self.schemes = kind
        self.stopped = threading.Event()
        self.came = 0
        self.turned_away = 0
        self.selector = selectors.DefaultSelector()

    def run(self):
        while not self.stopped.is_set():
            arrived = 0
            while len(self.selector.get_map()) < STRANGERS and arrived < 50:
                self.come()
                arrived += 1
            for key, _ in self.selector.select(0.005):
                self.hear(key.fileobj)
            for key in list(self.selector.get_map().values()):
                if key.data:
                    with contextlib.suppress(OSError):
                        key.fileobj.send(key.data.pop(0))
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()

    def come(self):
        scheme = self.schemes[self.came % len(self.schemes)]
        kind, _, place = self.worker.addresses[scheme].partition(":")
        stranger = None
        with contextlib.suppress(OSError):
            if kind in ("unix", "shm"):
                stranger = socket.socket(socket.AF_UNIX)
                stranger.settimeout(5)
                stranger.connect(place)
            else:
                host, _, port = place.rpartition(":")
                stranger = socket.create_connection((host, int(port)), timeout=5)
            self.came += 1
            words, later = self.say(scheme)
            stranger.setblocking(False)
            if words:
                stranger.send(words)
            self.selector.register(stranger, selectors.EVENT_READ, list(later))
            return
        if stranger:
            stranger.close()

    def hear(self, stranger):
        with contextlib.suppress(BlockingIOError):
            try:
                if stranger.recv(4096):
                    return
            except ConnectionError:
                pass
            self.turned_away += 1
            self.selector.unregister(stranger)
            stranger.close()


def besieged(worker, kind):
    crowd = Crowd(worker, kind)
    crowd.start()
    waited = {"tls": [], "unix": [], "shm": []}
    try:
        kit.until(lambda: f"a thousand strangers came; {crowd.came} did", lambda: crowd.came >= STRANGERS, 60)
        sessions = []
        for _ in range(3):
            for scheme, times in waited.items():
                result = worker.run(kit.program("init"), scheme=scheme, seconds=60)
                kit.hold(result.returncode == 0, scheme, "ended with", result.returncode, result.stdout, result.stderr)
                times.append(result.seconds)
                sessions.append(len(worker.children()))
        descriptors = worker.descriptors()
    finally:
        crowd.stopped.set()
        crowd.join()
    slowest = {scheme: max(times) for scheme, times in waited.items()}
    kit.hold(max(slowest.values()) < GETS_IN_WITHIN, "a program waited", slowest)
    # The spares, one that ends, one that begins, and its replacement.
    kit.hold(max(sessions) <= kit.SPARES + 3, "strangers have taken session processes:", sessions)
    kit.hold(descriptors <= DESCRIPTORS_MAX, "the worker has", descriptors, "descriptors")
    times = ", ".join(f"{scheme} {seconds:.2f} s" for scheme, seconds in slowest.items())
    return f"{crowd.came} came, {crowd.turned_away} were turned away; programs started and ended within {times}"


def log_is_small(worker):
    def counted():
        return sum(int(count) for count in re.findall(r"clients were turned away.* count=(\d+)", worker.log()))

    # The worker tells of them every few seconds.
    kit.until(lambda: f"the log counts {counted()} clients that were turned away: {worker.log()[-2000:]}", lambda: counted() >= STRANGERS)
    log = worker.log()
    kit.hold(len(log) < LOG_BYTES_MAX, "the log has", len(log), "bytes")
    return f"{len(log) >> 10} KiB tell of {counted()}"


def burst(worker):
    """More programs than there are sessions, all at once."""
    start = time.monotonic()
    schemes = ("unix", "tls", "shm", "tcp")
    clients = [worker.start(kit.program("init"), scheme=schemes[number % 4]) for number in range(BURST)]
    failed = []
    for client in clients:
        with client:
            client.process.wait(kit.HANG_SECONDS)
            if client.process.returncode:
                failed.append((client.process.returncode, client.said()))
    kit.hold(not failed, len(failed), "of", BURST, "failed; the first:", failed[:1])
    return f"all of them within {time.monotonic() - start:.1f} s"


def gives_up():
    with kit.Worker("--sessions", "1") as worker, worker.start(kit.program("load"), 1, 0) as neighbour:
        neighbour.wait_for("working")
        result = worker.run(kit.program("init"), environment={"DXPU_PATIENCE": "1s"})
        said = result.stdout + result.stderr
        kit.hold(result.returncode != 0 and "given up after" in said and "all sessions" in said, result.returncode, said)
