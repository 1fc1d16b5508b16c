"""Reads the whole history of a pool's store, transaction by transaction, and says what should never have been.

The store keeps every change, so this sees each state that was ever durable, whoever led at the time.
"""
import itertools
import json
import sqlite3

import kit


def of_sqlite(path):
    """Every change since the beginning: (revision, key, value or None)."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as file:
        [(oldest,)] = file.execute("SELECT oldest FROM meta")
        kit.hold(oldest == 0, "the store has forgotten everything before revision", oldest)
        rows = file.execute("SELECT revision, key, value FROM history ORDER BY revision, position").fetchall()
    return [(revision, bytes(key).decode(), None if value is None else bytes(value)) for revision, key, value in rows]


NEXT_STATES = {
    None: {"pending", "granted"},
    "pending": {"pending", "granted", "releasing", "ended"},
    "granted": {"pending", "granted", "releasing", "ended"},
    "releasing": {"releasing", "ended"},
    "ended": {"ended"},
}


class History:
    """What was found in a history."""

    def __init__(self, changes):
        self.gpus, self.leases, self.leaders = {}, {}, 0
        # (GPU, epoch) -> lease, and (lease, GPU) -> epochs; all that ever was.
        self.holder_of, self.epochs_of = {}, {}
        self.wrong = []
        self.transactions = 0
        for revision, changed in itertools.groupby(changes, key=lambda change: change[0]):
            self.transactions += 1
            self._apply(revision, list(changed))

    def _apply(self, revision, changes):
        touched = set()
        for _, key, value in changes:
            kind, _, name = key.partition("/")
            if kind == "leader":
                self.leaders += value is not None
            if kind not in ("gpu", "lease"):
                continue
            record = json.loads(value) if value is not None else None
            if kind == "gpu":
                self._gpu(revision, name, self.gpus.get(name), record)
                touched |= {holder["lease"] for holder in (record or {}).get("holders", ())}
                touched |= {holder["lease"] for holder in (self.gpus.get(name) or {}).get("holders", ())}
                self.gpus[name] = record
            else:
                self._lease(revision, name, self.leases.get(name), record)
                touched.add(name)
                self.leases[name] = record
        for name in touched:
            self._agree(revision, name)

    def _say(self, revision, *what):
        self.wrong.append(f"revision {revision}: " + " ".join(map(str, what)))

    def _gpu(self, revision, name, before, now):
        if now is None:
            if before and before.get("holders"):
                self._say(revision, name, "is gone with its holders")
            return
        holders = [holder["lease"] for holder in now.get("holders", ())]
        if len(holders) > 1:
            self._say(revision, name, "has several holders:", *holders)
        if (now["state"] == "leased") != bool(holders) and now["state"] in ("leased", "free"):
            self._say(revision, name, "is", now["state"], "with holders", holders)
        for lease in holders:
            known = self.holder_of.setdefault((name, now["epoch"]), lease)
            if known != lease:
                self._say(revision, name, "has holder", lease, "with epoch", now["epoch"], "of", known)
            self.epochs_of.setdefault((lease, name), set()).add(now["epoch"])
        if before is None:
            return
        for number in ("epoch", "cleaned_epoch"):
            if now[number] < before[number]:
                self._say(revision, number, "of", name, "goes back from", before[number], "to", now[number])
        old_holders = [holder["lease"] for holder in before.get("holders", ())]
        for lease in holders:
            if lease not in old_holders and (now["epoch"] <= before["epoch"] or now["cleaned_epoch"] < now["epoch"] - 1):
                self._say(revision, name, "goes from", old_holders, "to", lease, "before it was clean:", before, now)

    def _lease(self, revision, name, before, now):
        if now is None:
            if before and before["state"] != "ended":
                self._say(revision, name, "is forgotten while it is", before["state"])
            return
        if now["state"] not in NEXT_STATES[before["state"] if before else None]:
            self._say(revision, name, "goes from", before and before["state"], "to", now["state"])
        if before and before["state"] == "granted" and now["state"] in ("pending", "granted"):
            is_moved = len(now.get("moves", ())) > len(before.get("moves", ()))
            held = lambda lease: [(grant["gpu"], grant["epoch"]) for grant in lease["grants"]]
            if held(before) != held(now) and not is_moved:
                self._say(revision, name, "was granted", held(before), "and has", held(now), "without a word")

    def _agree(self, revision, name):
        """What a lease says and what its GPUs say is the same in every transaction."""
        lease = self.leases.get(name)
        held = {gpu for gpu, record in self.gpus.items() if record and any(h["lease"] == name for h in record.get("holders", ()))}
        said = {grant["gpu"] for grant in lease["grants"]} if lease else set()
        if held != said:
            self._say(revision, name, "says it has", said, "and is held by", held)
        if lease and lease["state"] == "granted":
            for grant in lease["grants"]:
                if self.gpus[grant["gpu"]]["epoch"] != grant["epoch"]:
                    self._say(revision, name, "has an epoch of", grant["gpu"], "that is not the GPU's")

    def check(self):
        kit.hold(not self.wrong, f"{len(self.wrong)} things are wrong in {self.transactions} transactions:\n" + "\n".join(self.wrong[:10]))

    def check_nothing_is_left(self):
        kept = {name: gpu["state"] for name, gpu in self.gpus.items() if gpu and (gpu["state"] != "free" or gpu.get("holders"))}
        kit.hold(not kept, "GPUs are leaked:", kept)
        live = {name: lease["state"] for name, lease in self.leases.items() if lease and lease["state"] != "ended"}
        kit.hold(not live, "leases never end:", live)

    def check_granted(self, lease):
        """What somebody was told was granted is durable: exactly this, at some time."""
        for grant in lease["grants"]:
            epochs = self.epochs_of.get((lease["id"], grant["gpu"]), set())
            kit.hold(grant["epoch"] in epochs, lease["id"], "was told it has", grant, "and the store has never known:", epochs)

    def check_slot(self, box, slot, leases):
        """What a slot saw: leases in the order of their epochs, each of which the store has given this GPU."""
        gpu, last = f"{box}/{slot}", 0
        for lease in leases:
            epochs = self.epochs_of.get((lease, gpu))
            kit.hold(epochs, gpu, "let", lease, "in, which never had it")
            later = [epoch for epoch in epochs if epoch >= last]
            kit.hold(later, gpu, "let", lease, "in with epochs", epochs, "after", last)
            last = min(later)


def check_the_checker():
    """Histories in which something is wrong, each of which it must find."""
    def gpu(state, epoch, cleaned, *leases):
        holders = [{"lease": lease, "share_milli": 1000, "memory_bytes": 1} for lease in leases]
        return {"state": state, "epoch": epoch, "cleaned_epoch": cleaned, "holders": holders}

    def lease(state, *grants, moves=()):
        return {"state": state, "grants": [{"gpu": name, "epoch": epoch} for name, epoch in grants], "moves": list(moves)}

    granted = [("gpu/a/0", gpu("leased", 1, 0, "l-1")), ("lease/l-1", lease("granted", ("a/0", 1)))]
    over = [("gpu/a/0", gpu("cleaning", 1, 0)), ("lease/l-1", lease("ended"))]
    free = [("gpu/a/0", gpu("free", 1, 1))]
    second = [("gpu/a/0", gpu("leased", 2, 1, "l-2")), ("lease/l-2", lease("granted", ("a/0", 2)))]

    def history(*transactions):
        changes = [(number, key, value and json.dumps(value)) for number, pairs in enumerate(transactions, 1) for key, value in pairs]
        return History(changes)

    right = history([("gpu/a/0", gpu("free", 0, 0))], granted, over, free, second)
    kit.hold(not right.wrong, "the checker finds fault with what is right:", right.wrong)
    unclean = [("gpu/a/0", gpu("leased", 2, 0, "l-2")), ("lease/l-2", lease("granted", ("a/0", 2)))]
    mutants = {
        "a second holder": (granted, [("gpu/a/0", gpu("leased", 1, 0, "l-1", "l-2")), ("lease/l-2", lease("granted", ("a/0", 1)))]),
        "the same epoch twice": (granted, over, free, [("gpu/a/0", gpu("leased", 1, 1, "l-2")), ("lease/l-2", lease("granted", ("a/0", 1)))]),
        "lent before it was clean": (granted, over, unclean),
        "an epoch that goes back": (granted, over, free, second, [("gpu/a/0", gpu("free", 1, 1)), ("lease/l-2", lease("ended"))]),
        "a lease that is forgotten": (granted, [("gpu/a/0", gpu("cleaning", 1, 0)), ("lease/l-1", None)]),
        "a lease that loses its GPU unsaid": (granted, [("gpu/a/0", gpu("cleaning", 1, 0)), ("lease/l-1", lease("pending"))]),
        "an end that is none": (granted, over, free, [("gpu/a/0", gpu("leased", 2, 1, "l-1")), ("lease/l-1", lease("granted", ("a/0", 2)))]),
        "a GPU without its lease": (granted, [("lease/l-1", lease("ended"))]),
    }
    for name, transactions in mutants.items():
        kit.hold(history([("gpu/a/0", gpu("free", 0, 0))], *transactions).wrong, "the checker does not see:", name)
    for state, wrong in (("cleaning", "a leak"), ("leased", "a holder")):
        left = history([("gpu/a/0", gpu(state, 1, 0))])
        try:
            left.check_nothing_is_left()
        except kit.Wrong:
            continue
        raise kit.Wrong(f"the checker does not see {wrong}")
    return f"{len(mutants) + 2} mutants"
