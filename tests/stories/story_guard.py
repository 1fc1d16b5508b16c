"""What holds when somebody means harm to a manager: strangers at its door, a log that was deleted, a trail that was cut."""
import json
import os
import resource
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import time

import kit
import pool_kit

# More than the manager may have files open.
FILES = 1024
STRANGERS = 1200


def tell(record):
    with pool_kit.Manager() as pool:
        record.part(f"{STRANGERS} who connect and say nothing keep nobody out", strangers, pool)
        record.part("a priority above a tenant's ceiling is refused in words", ceilings, pool)
        record.part("after a kill it is ready when it leads, and not before", killed, pool)
        record.part("a store whose log was deleted is refused, unless somebody means it", log_deleted, pool)
        record.part("a trail that was cut at either end is not called whole", trail_cut, pool)


def strangers(pool):
    """With a limit of open files that is no larger than the crowd."""
    pool.stop_manager()
    pool._start = lambda *words: start_with_files(pool, FILES, *words)
    try:
        pool.start_manager()
    finally:
        del pool._start
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
    around = ssl.create_default_context(cadata=pool.authority())
    around.check_hostname = False
    for kind in ("silent sockets", "handshakes and no more", "heads that never end"):
        crowd = []
        for _ in range(STRANGERS):
            try:
                one = socket.create_connection(("127.0.0.1", pool.port), 3)
                crowd.append(one)
                if kind != "silent sockets":
                    crowd[-1] = one = around.wrap_socket(one)
                if kind == "heads that never end":
                    one.sendall(b"GET /v1/boxes HTTP/1.1\r\nHost: m")
            except TimeoutError:
                # It is full: that is what an honest one is to be tried with.
                break
            except OSError:
                pass
        began = time.monotonic()
        result = pool.run("box", "ls", seconds=30)
        took = time.monotonic() - began
        kit.hold(result.returncode == 0, kind, result.stderr, pool.logs())
        print(f"    {kind}: dxpu box ls took {took:.2f} s")
        kit.hold(took < 5, kind, "kept dxpu box ls waiting for", took)
        for one in crowd:
            one.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def start_with_files(pool, files, *words):
    """Starts dxpu with a limit of open files of its own."""
    shell = f'ulimit -n {files}; exec "$0" "$@"'
    with open(os.path.join(pool.directory, f"{words[0]}.log"), "ab") as log:
        return subprocess.Popen(["/bin/sh", "-c", shell, kit.dxpu, *words], env=pool.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def ceilings(pool):
    ada = pool.credential("tenant/vision/ada")
    result = pool.run("lease", "create", "--priority", "1000", credential=ada)
    kit.hold(result.returncode == 65 and "100 at most" in result.stderr and "--priority-max" in result.stderr, result)
    result = pool.run("lease", "create", "--ttl", "7d", credential=ada)
    kit.hold(result.returncode == 65 and "--ttl-max" in result.stderr, result)
    said = pool.must("tenant", "set", "vision", "--priority-max", "500", "--ttl-max", "7d")
    kit.hold("priority up to 500" in said and "168.0 h" in said, said)
    lease = pool.json("lease", "create", "--priority", "500", "--ttl", "7d", credential=ada)
    pool.must("lease", "release", lease["id"], credential=ada)
    kit.hold("priority up to 500" in pool.must("tenant", "show", "vision"), "show")


def killed(pool):
    pool.manager.send_signal(signal.SIGKILL)
    pool.manager.wait()
    pool.manager = pool._start("manager", "--listen", f"127.0.0.1:{pool.port}", "--name", "m1", "--state-dir", os.path.dirname(pool.admin))
    told = []

    def is_ready():
        try:
            status, _, text = pool.fetch("/readyz")
        except OSError:
            return False
        told.append((status, text))
        return status == 200

    kit.until(lambda: f"{told[-3:]} {pool.logs()}", is_ready, 30)
    kit.hold(json.loads(told[-1][1])["standing"] == "leading", "it is the only one, so it leads:", told[-1])
    pool.must("box", "ls")


def log_deleted(pool):
    state = os.path.dirname(pool.admin)
    database = os.path.join(state, "pool.db")
    pool.must("tenant", "set", "late", "--weight", "7")
    pool.manager.send_signal(signal.SIGKILL)
    pool.manager.wait()
    kit.hold(os.path.getsize(database + "-wal") > 0, "what was written last is in the log")
    kept = os.path.join(pool.directory, "kept")
    shutil.copytree(state, kept)
    os.remove(database + "-wal")
    result = pool.run("manager", "--listen", f"127.0.0.1:{pool.port}", "--name", "m1", "--state-dir", state, seconds=20)
    kit.hold(result.returncode != 0 and "write-ahead log" in result.stderr and "--accept-older-store" in result.stderr, result)
    # The log is put back: nothing was lost by looking.
    shutil.copy(os.path.join(kept, "pool.db-wal"), database + "-wal")
    pool.start_manager()
    kit.hold(pool.json("tenant", "show", "late")["weight"] == 7, "all of it is there")
    # Somebody means it: in a copy without the log.
    os.remove(os.path.join(kept, "pool.db-wal"))
    admin = os.path.join(pool.directory, "other.json")
    result = pool.run("manager", "new-admin", "--state-dir", kept, "--out", admin, "--accept-older-store")
    kit.hold(result.returncode == 0, result)


def trail_cut(pool):
    kit.hold("none changed, none missing" in pool.must("audit", "verify"), "it is whole")
    state = os.path.dirname(pool.admin)
    book = b"audit/operators/"
    for which, words in (("min", "one before it is missing"), ("max", "it is missing, and all that came after it")):
        pool.stop_manager()
        kept = os.path.join(pool.directory, f"before-{which}")
        shutil.copytree(state, kept)
        with sqlite3.connect(os.path.join(state, "pool.db")) as database:
            [key] = database.execute(f"SELECT {which}(key) FROM records WHERE key >= ? AND key < ?", (book, book + b"\xff")).fetchone()
            database.execute("DELETE FROM records WHERE key = ?", (key,))
        database.close()
        pool.start_manager()
        result = pool.run("audit", "verify")
        kit.hold(result.returncode != 0 and words in result.stderr, which, result)
        pool.stop_manager()
        shutil.rmtree(state)
        shutil.move(kept, state)
        pool.start_manager()
    kit.hold("none changed, none missing" in pool.must("audit", "verify"), "it is whole again")
