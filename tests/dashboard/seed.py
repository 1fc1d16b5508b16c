"""A day of history, written into the store of a manager that is stopped, as earlier leaders would have left it."""
import json
import math
import os
import sqlite3
import time

STEP_MS = 120_000
STEPS = 720
REASONS = 9  # crates/pool/manager/src/history/sums.rs lists them


def sums(gpus, leased, busy, memory, waiting):
    """The sums of one look, with a reason for each lease that waits."""
    reasons = [0.0] * REASONS
    reasons[2], reasons[0], reasons[6] = waiting * 0.6, waiting * 0.25, waiting * 0.15
    return {
        "gpus": gpus, "free": max(0.0, gpus - leased - 2), "leased": leased,
        "busy_pct": busy * gpus, "busy_of": gpus, "sm_pct": 0.4 * busy * gpus, "sm_of": gpus, "memory_used": memory * gpus * (141 << 30), "memory_of": gpus * float(141 << 30),
        "waiting": waiting, "reasons": reasons,
    }


def a_day(state_directory):
    """Writes the steps; how many."""
    path = next(os.path.join(state_directory, name) for name in os.listdir(state_directory) if name.endswith(".db"))
    newest = int(time.time() * 1000) // STEP_MS - 1
    store = sqlite3.connect(path)
    revision = store.execute("SELECT revision FROM meta").fetchone()[0]
    for back in range(STEPS - 2):
        number = newest - back
        day = (1 + math.sin(number / 100)) / 2
        wave = (1 + math.sin(number / 9)) / 2
        leased = 6 + 14 * day
        waiting = max(0.0, 6 * day - 3 + 2 * wave)
        vision = sums(0, leased * 0.6, 60 + 30 * wave, 0.5 + 0.3 * day, waiting / 2)
        record = {"v": 1, "at_ms": number * STEP_MS, "step": {
            "samples": 1, "pool": sums(26, leased, 20 + 60 * day + 10 * wave, 0.25 + 0.5 * day, waiting), "tenants": {"vision": vision}}}
        key = f"history/{number % STEPS:03}".encode()
        store.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)", (key, json.dumps(record).encode(), revision, revision))
    store.commit()
    store.close()
    return STEPS - 2
