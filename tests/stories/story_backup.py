"""Backup and restore of a pool on etcd: taken while managers lead, refused while one does, carried from etcd to SQLite and into
another etcd, written into a cluster that lost a member."""
import base64
import json
import os
import re
import subprocess
import urllib.request

import etcd
import kit
from pool import Pool

# More records than etcd takes in one transaction (128), so that a restore needs several.
PAPER_BOXES, GPUS_EACH = 3, 48
GPUS = PAPER_BOXES * GPUS_EACH + 2


def tell(record):
    with etcd.Cluster() as cluster, Pool(managers=2, store=cluster.location()) as pool:
        day = Day(pool, cluster)
        record.part("a backup is taken while two managers run on etcd", day.back_up)
        record.part("a restore is refused while one leads; from etcd to SQLite and into another etcd, every record arrives", day.carry)
        record.part("restored with one member of etcd lost: the program goes on, later grants end", day.restore)
        record.part("a lease of before ends at its time limit, and its GPU time is counted to the millisecond", day.limit)
        record.part("a half-finished restore lets no manager start, and another try finishes it", day.half)


class Day:
    def __init__(self, pool, cluster):
        self.pool, self.cluster = pool, cluster
        self.store = cluster.location()
        self.file = pool.file("pool.backup")

    def lease(self, *options):
        """A lease that is granted and that nothing renews."""
        pool = self.pool
        made = json.loads(must(pool.ask("lease", "create", "--model", "H200", "--ttl", "1h", "-o", "json", *options)).stdout)
        kit.until(lambda: f"granted: {pool.last}", lambda: pool.json("lease", "show", made["id"])["state"] == "granted", 30)
        return pool.json("lease", "show", made["id"])

    def manage(self, *words):
        """`dxpu manager …`, as an admin types it where the managers run."""
        return subprocess.run([kit.dxpu, "manager", *words], env=self.pool.environment, capture_output=True, text=True, timeout=60)

    def back_up(self):
        pool = self.pool
        pool.box("steel", "--soft", "2", "--memory", "64MiB", "--kind", "nvlink")
        for number in range(PAPER_BOXES):
            pool.simulated_box(f"paper-{number}", "H200", GPUS_EACH)
        kit.until(lambda: f"all join: {pool.last.stdout}\n{pool.logs()}", lambda: len(pool.gpus()) == GPUS, 60)
        pool.all_free()
        must(pool.ask("tenant", "set", "stories", "--limit", "H200=3"))
        self.steady = pool.borrow(kit.program("steady"), options=("--model", "soft"))
        self.steady.wait_for("working")
        # Nothing renews or returns this one; its time limit must end it, whichever manager leads by then.
        self.limited = self.lease("--time-limit", "1s", "--tenant", "timed")
        self.kept = {lease["id"] for lease in pool.live_leases()} - {self.limited["id"]}
        said = must(self.manage("backup", "--store", self.store, "--out", self.file)).stdout
        records = int(re.search(r"\((\d+) records, revision \d+\)", said)[1])
        kit.hold(records > 128 and os.stat(self.file).st_mode & 0o777 == 0o600, said)
        # What happens after the backup is lost by the restore.
        must(pool.ask("tenant", "set", "stories", "--limit", "H200=9"))
        self.later = self.lease()
        return f"{records} records"

    def carry(self):
        before = keys(self.cluster)
        # It waits for as long as a manager that was killed may seem to lead; the rest of this part goes on meanwhile.
        command = [kit.dxpu, "manager", "restore", "--store", self.store, "--from", self.file, "--replace"]
        with kit.Client(command, self.pool.environment) as refused:
            self.carry_over()
            refused.ends(65)
            kit.hold("a manager leads on this store (https://" in refused.said() and "stop all managers first" in refused.said(), refused.said())
        now = keys(self.cluster)
        lost = [key for key in before if key.startswith(("lease/", "gpu/", "tenant/")) and key not in now]
        kit.hold(not lost, "a refused restore deletes records:", lost)

    def carry_over(self):
        sqlite = f"sqlite:{self.pool.file('carried.db')}"
        second, third = self.pool.file("second.backup"), self.pool.file("third.backup")
        must(self.manage("restore", "--store", sqlite, "--from", self.file))
        must(self.manage("backup", "--store", sqlite, "--out", second))
        with etcd.Cluster(members=1) as other:
            must(self.manage("restore", "--store", other.location(), "--from", second))
            must(self.manage("backup", "--store", other.location(), "--out", third))
        kit.hold(carried(second) == carried(third) == carried(self.file), "records differ")

    def restore(self):
        pool = self.pool
        for manager in pool.managers:
            manager.kill()
        self.cluster.kill(self.cluster.leader())
        result = self.manage("restore", "--store", self.store, "--from", self.file)
        kit.hold(result.returncode == 65 and "say --replace" in result.stderr, result)
        said = must(self.manage("restore", "--store", self.store, "--from", self.file, "--replace")).stdout
        kit.hold(f"{PAPER_BOXES + 1} boxes, 0 hosts, {GPUS} GPUs, 2 live leases, 1 tenant" in said, said)
        kit.hold("what to do next:" in said and "revoke again" in said, said)
        floor = int(re.search(r"epochs above (\d+)", said)[1])
        for manager in pool.managers:
            manager.start()
        kit.until(lambda: f"the later lease is unknown: {pool.last}", lambda: pool.ask("lease", "show", self.later["id"]).returncode == 65, 30)
        kit.hold(self.kept <= {lease["id"] for lease in pool.live_leases()}, "not there:", self.kept, pool.leases())
        kit.hold(pool.json("tenant", "show", "stories")["quotas"]["H200"]["limit"] == 3, "the limit is that of the backup")
        epoch = self.lease()["grants"][0]["epoch"]
        kit.hold(epoch > floor > self.later["grants"][0]["epoch"], "epochs:", epoch, floor, self.later)
        self.steady.process.terminate()
        self.steady.ends(0)
        kit.hold("none changed, none missing" in must(pool.ask("audit", "verify")).stdout, pool.last)
        return next(line for line in self.steady.said().splitlines() if line.startswith("rounds"))

    def limit(self):
        pool, lease = self.pool, self.limited["id"]
        kit.until(lambda: f"the lease ends at its limit: {pool.last}", lambda: pool.json("lease", "show", lease)["state"] == "ended", 30)
        shown = pool.json("lease", "show", lease)
        kit.hold(shown["ended"]["reason"] == "its time limit of 1s is over", shown)
        told = must(pool.ask("event", "ls", "--about", lease)).stdout
        kit.hold("its time limit of 1s is over" in told, told)
        [usage] = [one for one in pool.json("tenant", "usage") if one["tenant"] == "timed"]
        had = shown["ended"]["at_ms"] - self.limited["granted_ms"]
        kit.hold(usage["ended_gpu_ms"] == {"H200": had} and usage["leases_ended"] == 1, usage, "not", had)
        # 1 s, the 15 s that a borrower has to end its program, and what a leader that starts may add.
        kit.hold(16_000 <= had < 30_000, "it had the GPU for", had, "ms")
        return f"{had} ms counted"

    def half(self):
        for manager in self.pool.managers:
            manager.process.terminate()
            manager.process.wait(20)
        put(self.cluster, "restored/unfinished", b"restoring")
        manager = self.pool.managers[0]
        started = self.manage("--store", self.store, "--listen", f"127.0.0.1:{manager.port}", "--state-dir", manager.state)
        kit.hold(started.returncode == 1 and "restore --replace" in started.stderr, started)
        result = self.manage("backup", "--store", self.store, "--out", self.pool.file("half.backup"))
        kit.hold(result.returncode == 1 and "finish the restore first" in result.stderr, result)
        must(self.manage("restore", "--store", self.store, "--from", self.file, "--replace"))
        manager.start()
        kit.until("a manager leads", manager.leads, 30)
        manager.kill()


def must(result):
    kit.hold(result.returncode == 0, result)
    return result


def carried(path):
    """The records of a backup, but for the note of a restore and the elections."""
    with open(path) as file:
        lines = [json.loads(line) for line in file.read().splitlines()[1:-1]]
    return {line["k"]: line.get("t", line.get("x")) for line in lines if not line["k"].startswith("restored")}


def call(cluster, path, body):
    encoded = {name: base64.b64encode(value).decode() if isinstance(value, bytes) else value for name, value in body.items()}
    for address in cluster.clients:
        try:
            with urllib.request.urlopen(urllib.request.Request(address + path, json.dumps(encoded).encode()), timeout=5) as answer:
                return json.loads(answer.read())
        except OSError:
            continue
    raise kit.Wrong("no member of etcd answers")


def keys(cluster):
    answer = call(cluster, "/v3/kv/range", {"key": b"dxpu/", "range_end": b"dxpu0", "keys_only": True})
    return [base64.b64decode(one["key"]).decode().removeprefix("dxpu/") for one in answer["kvs"]]


def put(cluster, key, value):
    call(cluster, "/v3/kv/put", {"key": f"dxpu/{key}".encode(), "value": value})
