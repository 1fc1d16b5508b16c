"""Managers, members of etcd, boxes and borrowers killed with -9 and frozen at random, while programs work and others borrow.

Three managers on three members of etcd, then one manager on SQLite. A checker reads the whole history of the store and what
the slots saw; a probe borrows again and again and measures for how long nobody got anything; a program works all the time and
measures whether anybody disturbed it. Every run has two seeds: a fixed one, so that two commits can be compared, and a new one, so
that runs also find what the fixed one does not. `FAILOVER_SEED` repeats a run with that seed alone, `FAILOVER_SECONDS` makes it longer.
"""
import json
import os
import random
import re
import signal
import threading
import time

import etcd
import kit
import pool_history
from pool import Pool
from story_pool import descendants, kill

FIXED_SEED = 3172005655
SEEDS = [int(os.environ["FAILOVER_SEED"])] if os.environ.get("FAILOVER_SEED") else [FIXED_SEED, random.SystemRandom().randrange(1, 1 << 32)]
# For all seeds together.
SECONDS = float(os.environ.get("FAILOVER_SECONDS", "55"))
# What is promised when the leading manager or one member of etcd is lost.
GRANTS_STOP_SECONDS_MAX = 5.0
# How often somebody asks for a GPU, and how many may wait for theirs at once.
PROBE_EVERY_SECONDS = 0.3
PROBES_MAX = 24
# A program that had to wait for a manager would wait for seconds; two busy cores hold it up for less.
WORK_STOPS_MS_MAX = 2000


def tell(record):
    record.part("the checker of histories finds what is wrong", pool_history.check_the_checker)
    for seed in SEEDS:
        print(f"  seed {seed} (FAILOVER_SEED)", flush=True)
        torment(record, seed, SECONDS / len(SEEDS))


def torment(record, seed, seconds):
    with etcd.Cluster() as cluster, Pool(managers=3, store=cluster.location()) as pool:
        world = World(pool, cluster, seed)
        record.part("three managers on three members of etcd: everything dies and freezes", world.run, EtcdFaults, seconds)
        record.part("the whole history on etcd: no GPU had two holders, no lease was lost, nothing leaks", world.check, lambda: cluster.history())
    with Pool() as pool:
        world = World(pool, None, seed + 1)
        record.part("one manager on SQLite: everything dies and freezes", world.run, SqliteFaults, seconds / 2)
        record.part("the whole history on SQLite: no GPU had two holders, no lease was lost, nothing leaks", world.check,
                    lambda: pool_history.of_sqlite(os.path.join(pool.managers[0].state, "pool.db")))


class World:
    """A pool with everybody in it, and what is known of how they fared."""

    def __init__(self, pool, cluster, seed):
        self.pool, self.cluster, self.seed, self.dice = pool, cluster, seed, random.Random(seed)
        self.grants = []  # when somebody got a GPU
        self.told = []  # leases as somebody was told that they are granted
        self.complaints = []
        self.faults = []  # (when, what, whether grants must go on soon)
        self.is_over = threading.Event()
        self.victims = {}  # borrowers that may be killed, by process
        self.lock = threading.Lock()

    def run(self, faults, seconds):
        pool = self.pool
        # Programs that must not be disturbed are on `calm`; `rough` has workers killed; `paper` only pretends, and is quick.
        self.calm = pool.box("calm", "--soft", "1", "--memory", "256MiB", "--kind", "nvlink")
        self.rough = pool.box("rough", "--soft", "2", "--memory", "256MiB", "--kind", "pcie")
        paper = pool.simulated_box("paper", "H200", 32)
        kit.until(lambda: f"all join: {pool.last.stdout}\n{pool.logs()}", lambda: len(pool.gpus()) == 35, 60)
        pool.all_free(60)
        with pool.borrow(kit.program("steady"), options=("--model", "soft", "--kind", "nvlink")) as steady:
            steady.wait_for("working")
            threads = [threading.Thread(target=self.guard, args=(body,)) for body in (self.probe_often, self.borrow, self.borrow)]
            for thread in threads:
                thread.start()
            try:
                kit.until("the probe gets GPUs", lambda: len(self.grants) > 5, 60)
                self.torment(faults(self), seconds)
            finally:
                self.is_over.set()
                for thread in threads:
                    thread.join(120)
            kit.hold(not any(thread.is_alive() for thread in threads), "somebody who borrows never ends:\n", pool.logs())
            kit.hold(not self.complaints, "\n".join(self.complaints[:5]))
            steady.process.terminate()
            steady.ends(0)
            said = steady.said()
        kit.hold(paper.poll() is None, "the simulated box ended:", pool.read("paper.log")[-2000:])
        work = re.search(r"rounds (\d+) longest_ms ([\d.]+) at_s ([\d.]+)", said)
        kit.hold(work, "the program that worked all the time said", said)
        kit.hold("is lost" not in said and "is over" not in said, "the program was told of a loss:", said)
        gaps = self.gaps()
        kinds = sorted({what for _, what, _ in self.faults})
        note = (f"seed {self.seed}: {len(self.faults)} faults, {len(self.grants)} grants, longest without one {max(gaps.values(), default=0):.1f} s; "
                f"{work[1]} rounds of work, the longest {work[2]} ms")
        detail = "".join(f"\n         {what}: at most {gap:.1f} s without a grant" for what, gap in sorted(gaps.items()))
        kit.hold(float(work[2]) < WORK_STOPS_MS_MAX, "a program was held up for", work[2], "ms at", work[3], "s;", note, detail)
        kit.hold(len(kinds) >= len(faults.KINDS), "not everything happened:", kinds)
        slow = [f"{what} stopped grants for {gap:.1f} s" for what, gap in gaps.items() if what in faults.BOUNDED and gap >= GRANTS_STOP_SECONDS_MAX]
        kit.hold(not slow, pool.logs(), "\n", note, detail, "\n", "; ".join(slow))
        return note + detail

    def torment(self, faults, seconds):
        """One fault after the other, at random moments; each kind at least once."""
        until = time.monotonic() + seconds
        kinds = []
        first = True
        while time.monotonic() < until or (first and kinds):
            if not kinds:
                first = first and not self.faults
                kinds = list(faults.KINDS)
                self.dice.shuffle(kinds)
            what = kinds.pop()
            time.sleep(self.dice.uniform(0.3, 1.2))
            began = time.monotonic()
            self.faults.append((began, what, what in faults.BOUNDED))
            getattr(faults, what.replace(" ", "_"))()
            # The next one comes when this one is over: somebody got a GPU after it.
            kit.until(lambda: f"grants go on after: {what} (seed {self.seed})\n{self.pool.logs()}",
                      lambda: any(at > began for at in self.grants[-20:]) and time.monotonic() > began + 0.5, 40)

    def gaps(self):
        """For each kind of fault the longest time without a grant that it was followed by."""
        times = sorted(self.grants)
        ends = [at for at, _, _ in self.faults[1:]] + [times[-1]]
        found = {}
        for (at, what, _), end in zip(self.faults, ends):
            around = [time for time in times if at - 10 <= time <= end]
            longest = max((later - earlier for earlier, later in zip(around, around[1:]) if later > at), default=0)
            found[what] = max(found.get(what, 0), longest)
        return found

    def guard(self, body):
        while not self.is_over.is_set() and not self.complaints:
            self.guard_once(body)

    def probe_often(self):
        """Somebody new asks all the time, whatever became of those before."""
        probes = []
        while not self.is_over.is_set():
            probes = [probe for probe in probes if probe.is_alive()]
            if len(probes) < PROBES_MAX:
                probes.append(threading.Thread(target=self.guard_once, args=(self.probe,)))
                probes[-1].start()
            time.sleep(PROBE_EVERY_SECONDS)
        for probe in probes:
            probe.join(90)
            kit.hold(not probe.is_alive(), "a probe never ends")

    def guard_once(self, body):
        try:
            body()
        except Exception as error:
            self.complaints.append(f"{body.__name__}: {error!r}")

    def probe(self):
        """Borrows, looks whether it is true, and gives back."""
        key = f"probe-{random.SystemRandom().getrandbits(64):x}"
        words = ("lease", "create", "--model", "H200", "--ttl", "30s", "--wait", "--key", key, "-o", "json")
        lease = self.ask(*words)
        kit.hold(lease["state"] == "granted", "a lease that was waited for is", lease)
        self.grants.append(time.monotonic())
        self.told.append(lease)
        now = self.ask("lease", "show", lease["id"], "-o", "json")
        same = lambda record: [(grant["gpu"], grant["epoch"]) for grant in record["grants"]]
        kit.hold(now["state"] == "granted" and same(now) == same(lease), "a granted lease was lost:", lease, now)
        over = self.ask("lease", "release", lease["id"], "-o", "json")
        kit.hold(over["state"] in ("releasing", "ended"), "a lease that was given back is", over)

    def ask(self, *words):
        """Asks until there is an answer. Every command ends by itself, and what is asked may be asked again."""
        deadline = time.monotonic() + 60
        while True:
            environment = self.pool.environment | {"DXPU_CREDENTIAL": self.pool.borrower}
            result = kit.run_plainly([kit.dxpu, *words], environment, 45)
            if result.returncode == 0:
                return json.loads(result.stdout)
            kit.hold(time.monotonic() < deadline, *words, "fails for too long:", result.returncode, result.stderr)
            # 64: nobody answers; 65: refused, which here may only be for want of a leader or of its store.
            is_later = result.returncode == 64 or re.search("lead|stop|store|too much", result.stderr)
            kit.hold(is_later, *words, "ended with", result.returncode, result.stderr)

    def borrow(self):
        """A program that borrows, works a little, and ends, or is killed or frozen by somebody."""
        options = ("--model", "soft", "--kind", "pcie", "--wait", "60s")
        gpus = random.SystemRandom().choice((1, 1, 2))
        with self.pool.borrow(kit.program("load"), 1, 3, gpus=gpus, options=options) as client:
            with self.lock:
                self.victims[client.pid] = client
            try:
                kit.until(lambda: f"a borrower ends: {client.said()}", lambda: client.process.poll() is not None, 100)
            finally:
                with self.lock:
                    self.victims.pop(client.pid, None)
        # What may become of it: done; its worker or the manager it asked was lost.
        kit.hold(client.process.returncode in (0, 1, 7, 64, 65, 91, -signal.SIGKILL), "a borrower ended with", client.process.returncode)

    def check(self, history):
        """After everybody has gone: nothing is left, and the history says that it was so all the time."""
        pool = self.pool
        pool.all_free(60)
        trail = pool.ask("audit", "verify")
        kit.hold(trail.returncode == 0, "the audit trail is broken:", trail.stdout, trail.stderr)
        found = pool_history.History(history())
        found.check()
        found.check_nothing_is_left()
        for lease in self.told:
            found.check_granted(lease)
        for lease in {lease["id"] for lease in self.told}:
            ended = found.leases[lease]["ended"]["reason"]
            kit.hold("released" in ended, lease, "was given back, and ended because", ended)
        sessions = 0
        for box in (self.calm, self.rough):
            by_slot = {}
            for _, slot, lease in box.sessions():
                sessions += 1
                by_slot.setdefault(slot, []).append(lease)
            kit.hold(not box.overlaps(), box.name, "let two leases in at once:", box.overlaps()[:3])
            for slot, leases in by_slot.items():
                found.check_slot(box.name, slot, leases)
                bound, _ = box.epochs(slot)
                kit.hold(bound <= found.gpus[f"{box.name}/{slot}"]["epoch"], box.name, slot, "has let in epoch", bound)
        kit.hold(sessions > 3, "only", sessions, "sessions were seen")
        changes = f"{found.transactions} transactions, {len(found.leases)} leases, {found.leaders} times a leader, {sessions} sessions"
        return changes


class Faults:
    """Things that happen to boxes and borrowers, in every pool."""

    def __init__(self, world):
        self.world, self.pool, self.dice = world, world.pool, world.dice

    def freeze(self, pids, seconds):
        for pid in pids:
            kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in pids:
            kill(pid, signal.SIGCONT)

    def kill_an_agent(self):
        box = self.dice.choice((self.world.calm, self.world.rough))
        box.kill_agent()
        time.sleep(self.dice.uniform(0, 1))
        box.start()

    def freeze_an_agent(self):
        self.freeze([self.dice.choice((self.world.calm, self.world.rough)).process.pid], self.dice.choice((0.5, 2)))

    def kill_a_worker(self):
        workers = self.world.rough.workers()
        if workers:
            kill(self.dice.choice(workers))

    def kill_a_borrower(self):
        for pid in self._a_borrower():
            orphans = descendants(pid) if kit.alive(pid) else []
            kill(pid)
            for orphan in orphans:
                kill(orphan)

    def freeze_a_borrower(self):
        self.freeze(self._a_borrower(), self.dice.choice((0.5, 2, 4)))

    def _a_borrower(self):
        with self.world.lock:
            pids = sorted(self.world.victims)
        return [self.dice.choice(pids)] if pids else []


class SqliteFaults(Faults):
    KINDS = ("kill the manager", "freeze the manager", "kill an agent", "freeze an agent", "kill a worker", "kill a borrower", "freeze a borrower")
    # Whoever starts it again decides how long it takes; here it is started at once.
    BOUNDED = ("kill the manager",)

    def kill_the_manager(self):
        self.pool.managers[0].kill()
        self.pool.managers[0].start()

    def freeze_the_manager(self):
        self.freeze([self.pool.manager.pid], self.dice.choice((0.5, 2, 9)))


class EtcdFaults(Faults):
    KINDS = ("kill the leading manager", "freeze the leading manager", "kill a manager", "kill the leading member", "kill a member",
             "freeze a member", "kill an agent", "freeze an agent", "kill a worker", "kill a borrower", "freeze a borrower")
    BOUNDED = ("kill the leading manager", "kill a manager", "kill the leading member", "kill a member", "freeze the leading manager")

    def leading(self):
        """The manager that leads, as it says itself."""
        found = []

        def look():
            found[:] = [manager for manager in self.pool.managers if manager.leads()]
            return found
        kit.until(lambda: f"a manager leads:\n{self.pool.logs()}", look, 30)
        return found[0]

    def kill_the_leading_manager(self):
        self._kill(self.leading())

    def kill_a_manager(self):
        self._kill(self.dice.choice(self.pool.managers))

    def _kill(self, manager):
        manager.kill()
        # Not so soon that it could lead again before another does.
        self._wait_for_a_grant()
        manager.start()

    def freeze_the_leading_manager(self):
        manager = self.leading()
        kill(manager.process.pid, signal.SIGSTOP)
        try:
            self._wait_for_a_grant()
        finally:
            kill(manager.process.pid, signal.SIGCONT)

    def kill_the_leading_member(self):
        self._lose(self.world.cluster.leader() or 0)

    def kill_a_member(self):
        self._lose(self.dice.randrange(etcd.MEMBERS))

    def _lose(self, member):
        self.world.cluster.kill(member)
        self._wait_for_a_grant()
        self.world.cluster.start(member)
        # Two lost of three would be another story.
        kit.until("a member comes back", self.world.cluster.is_whole, 30)

    def freeze_a_member(self):
        self.freeze([self.dice.choice(self.world.cluster.members).pid], self.dice.choice((0.5, 2)))

    def _wait_for_a_grant(self):
        began = time.monotonic()
        kit.until(lambda: f"grants go on (seed {self.world.seed})\n{self.pool.logs()}", lambda: sum(at > began + 0.5 for at in self.world.grants[-20:]) > 1, 40)
