"""A page of sharing, as `dxpu box` makes it for the workers of one GPU: crates/cuda/sharing/src/page.rs. Read beside the programs, it
says why a pair has what it has: how long online programs were busy, how often, and what they ordered."""

import os
import struct
import tempfile
import time

# The last byte is the version; a worker refuses a page of another one.
MAGIC = b"dxpugat\x03"
HEADER, SLOTS, SLOT = 16, 63, 16
WORDS = HEADER + SLOTS * SLOT
# Words of the header: bits of the slots of online sessions; the page's lives; bits of those of offline ones.
PRESENT, EPOCH, GUESTS = 2, 3, 8
# Words of a slot.
BUSY_SINCE, BUSY_TOTAL_NS, BUSY_PERIODS, GROUPS, GROUP_US, COST_MILLI = 3, 5, 6, 10, 11, 13


class Page:
    """`path`: one that is there."""

    def __init__(self, path=None):
        if path:
            self.path = path
            return
        # In memory, because the driver registers no page of a file on a disk.
        place, self.path = tempfile.mkstemp(prefix="dxpu-bench-page-", dir="/dev/shm")
        with open(place, "wb") as file:
            words = [0] * WORDS
            words[0], words[EPOCH] = int.from_bytes(MAGIC, "little"), 1
            file.write(struct.pack(f"<{WORDS}Q", *words))

    def look(self):
        """What it counts, and when that was."""
        with open(self.path, "rb") as file:
            words = struct.unpack(f"<{WORDS}Q", file.read(8 * WORDS))
        now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)

        def of(bits, field):
            return [words[HEADER + slot * SLOT + field] for slot in range(SLOTS) if words[bits] >> slot & 1]

        busy_now = sum(now_ns - since for since in of(PRESENT, BUSY_SINCE) if 0 < since <= now_ns)
        return {
            "at_ns": now_ns,
            "busy_ns": sum(of(PRESENT, BUSY_TOTAL_NS)) + busy_now,
            "periods": sum(of(PRESENT, BUSY_PERIODS)),
            "groups": sum(of(GUESTS, GROUPS)),
            "online": words[PRESENT].bit_count(),
            "group_us": min((us for us in of(PRESENT, GROUP_US) if us), default=None),
            "cost": max(of(PRESENT, COST_MILLI), default=0) / 1000,
        }

    def remove(self):
        os.unlink(self.path)


def between(before, after):
    """What happened between two looks: online programs' share of the time, and how often they began to work and offline groups began,
    a second. Counts of sessions that came or left meanwhile are not in it."""
    seconds = (after["at_ns"] - before["at_ns"]) / 1e9

    def per_second(name):
        return max(0, after[name] - before[name]) / seconds

    found = {"busy": per_second("busy_ns") / 1e9, "periods": per_second("periods"), "groups": per_second("groups")}
    return found | {"group_us": after["group_us"], "cost": after["cost"]}
