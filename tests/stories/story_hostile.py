"""Strangers at the worker's door: garbage, half sentences, huge promises, silence. Its clients do not notice."""
import contextlib
import os
import random
import socket
import struct
import threading
import time

import kit

RESIDENT_GROWTH_BYTES = 16 << 20
random_source = random.Random(4)


def tell(record):
    with kit.Worker(log="debug") as worker:
        free = worker.free_memory()
        with worker.start(kit.program("load"), 1, 0) as neighbour:
            neighbour.wait_for("working")
            with worker.left_as_found(neighbours=1, seconds=40):
                before = worker.resident_bytes()
                for name, (attack, words) in ATTACKS.items():
                    record.part(name, attacked, worker, attack, words)
                record.part("silent connections by the hundred", slow_loris, worker)
                record.part("three hundred streams that wait", many_streams, worker)
                record.part("the worker stays small", stays_small, worker, before)
            record.part("the neighbour worked on meanwhile", works_on, neighbour)
        record.part("all device memory is back, to the byte", worker.memory_is_back, free)


def works_on(neighbour):
    kit.hold(neighbour.process.poll() is None, "the neighbour ended:", neighbour.said())


def stays_small(worker, before):
    growth = worker.resident_bytes() - before
    kit.hold(growth < RESIDENT_GROWTH_BYTES, "the listening process grew by", growth, "bytes")
    return f"it grew by {growth >> 10} KiB"


def call_on(worker, scheme):
    kind, _, place = worker.addresses[scheme].partition(":")
    if kind in ("unix", "shm"):
        stranger = socket.socket(socket.AF_UNIX)
        stranger.settimeout(10)
        stranger.connect(place)
        return stranger
    host, _, port = place.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def preamble(kind=0, scheme=0, lane=0, version=1, magic=b"\xd5dxpu\r\n\x1a", session=None):
    """The 64 bytes that begin a connection, with a right checksum."""
    head = magic + struct.pack("<HBBHH", version, kind, scheme, lane, 0) + (session or os.urandom(16))
    head = head.ljust(60, b"\0")
    checksum = 0x811C9DC5
    for byte in head:
        checksum = (checksum ^ byte) * 0x01000193 % (1 << 32)
    return head + struct.pack("<I", checksum)


# Numbers on the wire: of the door among the kinds of connections, and of the schemes.
DOOR = 4
SCHEME_NUMBER = {"tcp": 0, "tls": 1, "unix": 2, "shm": 3}


def garbage(_):
    return os.urandom(random_source.choice((1, 63, 64, 65, 5000)))


def http(_):
    return b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n".ljust(64, b" ")


def wrong_magic(scheme):
    return preamble(scheme=SCHEME_NUMBER[scheme], magic=b"\xd5dxpv\r\n\x1a")


def damaged(scheme):
    return preamble(scheme=SCHEME_NUMBER[scheme])[:-1] + b"!"


def future(scheme):
    return preamble(scheme=SCHEME_NUMBER[scheme], version=77)


def truncated(scheme):
    return preamble(scheme=SCHEME_NUMBER[scheme])[:40]


def unknown_kind(scheme):
    return preamble(scheme=SCHEME_NUMBER[scheme], kind=9)


def joins_nothing(scheme):
    return preamble(scheme=SCHEME_NUMBER[scheme], kind=1)


def no_ticket(scheme):
    return preamble(scheme=SCHEME_NUMBER[scheme])


def huge_handshake(scheme):
    return preamble(scheme=SCHEME_NUMBER[scheme], kind=DOOR) + struct.pack("<I", 0xFFFFFFFF) + b"\x06" + os.urandom(100)


def garbage_handshake(scheme):
    return preamble(scheme=SCHEME_NUMBER[scheme], kind=DOOR) + struct.pack("<I", 200) + b"\xee" + os.urandom(199)


def cut_handshake(scheme):
    return preamble(scheme=SCHEME_NUMBER[scheme], kind=DOOR) + struct.pack("<I", 200) + os.urandom(50)


# What a stranger sends, and words of the log that say why it was turned away.
ATTACKS = {
    "random bytes": (garbage, "a stranger was turned away"),
    "another protocol": (http, "does not speak dxpu"),
    "a wrong magic": (wrong_magic, "does not speak dxpu"),
    "a damaged preamble": (damaged, "checksum does not match"),
    "a version of the future": (future, "speaks version 77"),
    "half a preamble": (truncated, "a stranger was turned away"),
    "an unknown kind": (unknown_kind, "connection kind 9 is unknown"),
    "a lane of no session": (joins_nothing, "there is no such session"),
    "a session without a ticket": (no_ticket, "there is no such ticket"),
    "a handshake of 4 GiB": (huge_handshake, "is over the bound of"),
    "a handshake of noise": (garbage_handshake, "is no handshake"),
    "half a handshake": (cut_handshake, "did not finish the set-up"),
}
STRANGERS = 24


def attacked(worker, attack, words):
    start = len(worker.log())

    def one(number):
        scheme = kit.SCHEMES[number % len(kit.SCHEMES)]
        with contextlib.suppress(OSError), call_on(worker, scheme) as stranger:
            stranger.sendall(attack(scheme))
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass

    kit.each(STRANGERS, one, 6)
    # Whoever comes next is served.
    worker.must(kit.program("load"), 1, 2, seconds=30)
    kit.until(lambda: f"the log says {words!r}: {worker.log()[start:][-2000:]}", lambda: words in worker.log()[start:], 8)


def slow_loris(worker):
    """More silent connections than are let in at once, some saying a byte now and then, while programs come and go."""
    crowd = []
    stop = threading.Event()

    def keep_coming():
        while not stop.is_set():
            with contextlib.suppress(OSError):
                if len(crowd) < 300:
                    scheme = kit.SCHEMES[len(crowd) % 4]
                    stranger = call_on(worker, scheme)
                    crowd.append(stranger)
                    # Most stop after a byte; some look like clients until they are asked who they are.
                    stranger.send(preamble(scheme=SCHEME_NUMBER[scheme], kind=DOOR) if len(crowd) % 8 == 0 else b"\xd5")
            time.sleep(0.005)

    thread = threading.Thread(target=keep_coming)
    thread.start()
    try:
        kit.until("strangers stand at the door", lambda: len(crowd) > 80)
        waited = []
        for _ in range(4):
            start = time.monotonic()
            worker.must(kit.program("load"), 1, 1)
            waited.append(time.monotonic() - start)
    finally:
        stop.set()
        thread.join()
        for stranger in crowd:
            stranger.close()
    return f"a program waited {max(waited):.1f} s at most"


def many_streams(worker):
    """A session has a bounded number of threads, and who wants more waits for them."""
    with worker.start(kit.program("streams")) as program:
        session = lambda: worker.session_of(program.pid)
        kit.until("the session begins", lambda: session() is not None)
        threads = lambda: len(os.listdir(f"/proc/{session()}/task"))
        most = 0
        while program.process.poll() is None:
            with contextlib.suppress(OSError):
                most = max(most, threads())
            time.sleep(0.05)
        program.ends(0)
        kit.hold("all right" in program.said(), program.said())
    kit.hold(100 < most < 200, "300 waiting streams had", most, "threads")
    return f"{most} threads at most"
