"""Programs of a pool that move to another box while they work, and that give their GPU back while they rest."""

import os
import re
import sys
import time

from bed import BENCH, hold, tail, until

from .pool import CLEAN_SECONDS, Pool

# The two boxes have the same GPU here: there is one. Between boxes the bytes go over TLS all the same.
BOXES = ("b1", "b2")
GUARD_MEMORY = {"nvidia": "48GiB", "soft": "1GiB"}
# Thousandths of a GPU and their memory.
PART = {"nvidia": "500,24GiB", "soft": "500,256MiB"}
SIZES = {"nvidia": (8, 20, 2), "soft": (0.05, 0.05, 0.05)}
# The part of the program's memory that it changes in a second.
CHANGE = 0.05
WORK_SECONDS = 75
MOVES = 3
READY_SECONDS = 90
MOVE_SECONDS = 40


def programs_move_and_rest(bed):
    with Pool(bed, BOXES, ("--guard-memory", GUARD_MEMORY[bed.driver])) as pool:
        _guards_are_ready(pool)
        moved, rested, drilled = SIZES[bed.driver]
        return [*_moved(pool, moved), *_rested(pool, rested), *_drilled(pool, drilled)]


def programs_move_within_a_box(bed):
    """The box lends its GPU in two parts, each with a worker of its own, so a program can move from one to the other."""
    options = ("--guard-memory", GUARD_MEMORY[bed.driver], "--shares", "2")
    with Pool(bed, BOXES[:1], options) as pool:
        _guards_are_ready(pool)
        return _moved(pool, SIZES[bed.driver][0], ("--gpus", "1", "--share", PART[bed.driver]))


def _guards_are_ready(pool):
    """A box makes its guard memory ready after its start; it serves long before that, and its first images are slower until then."""
    made = lambda: re.findall(r"guard memory is ready", pool.guardians_said())
    until(lambda: f"guard memory is ready: {pool.guardians_said()}", lambda: len(made()) >= len(pool.boxes), READY_SECONDS)


def _start(pool, name, gb, *words, wish=("--gpus", "1")):
    program = [sys.executable, os.path.join(BENCH, "live_bytes.py"), "--gb", str(gb), "--change", str(CHANGE)]
    process = pool.start(name, "run", "--survive", *wish, "--", *program, *words)
    _says(pool, name, process, "works")
    [lease] = [lease["id"] for lease in pool.ask("lease", "ls") if lease["state"] == "granted"]
    until(lambda: f"{name} is protected: {_links(pool, lease)} {pool.logs()}", lambda: _is_protected(pool, lease), READY_SECONDS)
    return process, lease


def _says(pool, name, process, text, seconds=READY_SECONDS):
    ended = lambda: process.poll() is not None
    until(lambda: f"{name} says {text!r}; it said {tail(pool.said(name), 3)} {pool.logs()}", lambda: text in pool.said(name) or ended(), seconds)
    hold(text in pool.said(name), name, "ended with", process.returncode, pool.logs())


def _links(pool, lease):
    return pool.ask("lease", "show", lease).get("protection", {}).get("links", [])


def _is_protected(pool, lease):
    links = _links(pool, lease)
    return bool(links) and all(link["state"] == "protected" for link in links)


def _place(pool, lease):
    grants = pool.ask("lease", "show", lease).get("grants") or [{"gpu": ""}]
    return grants[0]["gpu"]


def _steps(pool, name):
    return [float(when) for when in re.findall(r"^step \d+ ([\d.]+)$", pool.said(name), re.M)]


def _longest(times, since, until):
    """The longest pause in milliseconds between two steps in this time."""
    inside = [when for when in times if since - 1 <= when <= until + 1]
    return 1e3 * max((b - a for a, b in zip(inside, inside[1:])), default=float("nan"))


def _ends_well(pool, name, process):
    until(lambda: f"{name} ends: {tail(pool.said(name), 2)} {pool.logs()}", lambda: process.poll() is not None, WORK_SECONDS + 60)
    hold(process.returncode == 0 and "right" in pool.said(name), name, process.returncode, tail(pool.said(name), 3), pool.logs())


def _touch(path):
    with open(path, "w"):
        pass


def _went_on(pool, name):
    """What the program's pauses consist of, as its library tells them."""
    return "; ".join(re.findall(r"another session after (\d+ ms \([^)]*\))", pool.complained(name)))


def _moved(pool, gb, wish=("--gpus", "1")):
    enough = pool.folder("moved-enough")
    process, lease = _start(pool, "moved", gb, "--seconds", str(WORK_SECONDS), "--end-at", enough, wish=wish)
    moves, refused = [], []
    for turn in range(MOVES):
        here, there = _place(pool, lease), _other_gpu(pool, lease)
        # What was left last is cleaned first.
        until(lambda: f"{there} is free: {pool.ask('gpu', 'ls')}", lambda: _state(pool, there) == "free", CLEAN_SECONDS)
        box, began = there.split("/")[0], time.time()
        until(lambda: f"it may move to {there}: {refused[-1:]} {pool.logs()}", lambda: _asks_to_move(pool, lease, box, refused), MOVE_SECONDS)
        until(lambda: f"it is at {there}: {pool.logs()}", lambda: _place(pool, lease) not in ("", here), MOVE_SECONDS)
        hold(_place(pool, lease) == there, "it moved from", here, "to", _place(pool, lease), "and not to", there)
        until(lambda: f"it is protected at {there}", lambda: _is_protected(pool, lease), READY_SECONDS)
        moves.append((began, time.time()))
    # Some steps behind the last move.
    time.sleep(1)
    _touch(enough)
    _ends_well(pool, "moved", process)
    times = _steps(pool, "moved")
    longest = [_longest(times, *move) for move in moves]
    usual = sorted(b - a for a, b in zip(times, times[1:]))[len(times) // 2] * 1e3
    pauses = ", ".join(f"{pause:.0f}" for pause in longest)
    way = "from box to box" if len(pool.boxes) > 1 else "within its box"
    said = f"{gb} GB moved {way} {MOVES} times under load: longest step {pauses} ms (usually {usual:.1f}); every byte right"
    return [said, f"went on after {_went_on(pool, 'moved')}"]


def _other_gpu(pool, lease):
    """The GPU, or the part of it, that the lease does not have: there are two."""
    here = _place(pool, lease)
    [there] = [gpu["id"] for gpu in pool.ask("gpu", "ls") if gpu["id"] != here]
    return there


def _state(pool, gpu):
    return next((found["state"] for found in pool.ask("gpu", "ls") if found["id"] == gpu), "absent")


def _asks_to_move(pool, lease, there, refused):
    asked = pool.run("lease", "move", lease, "--to", there)
    refused.append(asked.stderr)
    return asked.returncode == 0


def _rested(pool, gb):
    go_on = pool.folder("go-on")
    process, lease = _start(pool, "rested", gb, "--seconds", "12", "--rest-until", go_on)
    _says(pool, "rested", process, "rests")
    began = time.monotonic()
    pool.must("lease", "suspend", lease)
    state = lambda: pool.ask("lease", "show", lease)["state"]
    until(lambda: f"it is suspended: {state()}", lambda: state() not in ("granted", "moving"), MOVE_SECONDS)
    took = time.monotonic() - began
    # A program that wakes before the GPU next to its image is clean and has a worker goes to another box, and its image over the network.
    can_be_had = lambda gpu: gpu["state"] == "free" and not gpu.get("unready")
    until(lambda: f"both GPUs can be had {pool.ask('gpu', 'ls')}", lambda: all(map(can_be_had, pool.ask("gpu", "ls"))), MOVE_SECONDS)
    _touch(go_on)
    _ends_well(pool, "rested", process)
    woke = re.search(r"woke after (\d+) ms", pool.said("rested"))
    said = f"{gb} GB suspended in {took:.1f} s, back {woke[1]} ms after the next CUDA call; every byte right"
    return [said, f"went on after {_went_on(pool, 'rested')}"]


def _drilled(pool, gb):
    enough = pool.folder("drilled-enough")
    process, lease = _start(pool, "drilled", gb, "--seconds", "60", "--end-at", enough)
    said = pool.must("lease", "drill", lease)
    _touch(enough)
    _ends_well(pool, "drilled", process)
    return [f"drill: {' '.join(said.split())}"]
