#!/usr/bin/env python3
"""Measures online and offline programs that share one GPU: each alone, and in pairs on several sides (ways to share).

    python3 bench/gpu/share.py --dxpu PATH --out DIR                    one online program, two works, load 0.5
    python3 bench/gpu/share.py --dxpu PATH --out DIR --matrix           all programs, works and loads; bits of results
    python3 bench/gpu/share.py --dxpu PATH --out A --matrix --loads 0.5                one load of it, for a machine that is lent for
    python3 bench/gpu/share.py --join A B C --out DIR                                  minutes; then the runs A, B and C as one
    python3 bench/gpu/share.py --dxpu PATH --out DIR --faults 100       faults of offline programs beside an online one
    python3 bench/gpu/share.py --dxpu PATH --out DIR --faults 20 --sides merged        the same with merged contexts
    python3 bench/gpu/share.py --dxpu PATH --out DIR --day 600          a day's load, without and with an offline program
    python3 bench/gpu/share.py --dxpu PATH --out DIR --pauses 8         an online program in bursts: what its pauses give an offline one

The online program has requests at random arrivals; its latency counts from the arrival, so a program that falls behind shows. Load
0.5 means that requests alone would keep it busy half of the time. The offline program's rate is told as a share of its rate alone.
The programs are in share_programs/networks.py. A program is started once for each side, and does one row after another.

    slices    both dedicated, through one worker: the device's time slices
    gate      --class online and --class offline, through the same worker
    mps       both native, under an MPS daemon that this starts and stops
    mps30     the same; the offline program has 30 % of the threads, the online one comes first
    isolated  as gate, through a worker with --offline-slice 100us, as a box has it; slice1, slice100 and slice300 alike
    merged    as gate, through a worker with --merged; beside faults the online program has --survive

DIR gets share.json, share.md and plot.svg after each row, and logs at the end. A row that fails is told; the others are measured.

    --programs plain --driver soft        tries the benchmark itself, on a GPU in software
"""

import argparse
import json
import os
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "lib"))
sys.dont_write_bytecode = True

import machine  # noqa: E402
import share_day  # noqa: E402
import share_faults  # noqa: E402
import share_join  # noqa: E402
import share_matrix  # noqa: E402
import share_mps  # noqa: E402
import share_pause  # noqa: E402
import share_rows  # noqa: E402
import share_sides  # noqa: E402
import workers  # noqa: E402

# All that there is, and what is measured without --matrix. The load in the middle first: a run that is cut short has it.
ALL = {"onlines": "graph,eager,decode", "works": "train,graph,bert,product", "loads": "0.5,0.2,0.8"}
FEW = {"onlines": "graph", "works": "train,product", "loads": "0.5"}
VERIFY_STEPS = 20


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dxpu", help="the dxpu binary")
    parser.add_argument("--join", nargs="+", metavar="DIR", help="measure nothing: write the results of these runs as one")
    parser.add_argument("--out", help="folder for the results")
    parser.add_argument("--seconds", type=float, default=4, help="how long each row is measured")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="no row begins after this time")
    parser.add_argument("--matrix", action="store_true", help=f"{ALL}, unless they are given, and --verify {VERIFY_STEPS}")
    parser.add_argument("--onlines", help="online programs; the first one is beside faults and in the day")
    parser.add_argument("--works", help="of the offline program; the first one is in the day")
    parser.add_argument("--loads", help="of the online program; the first one is beside faults")
    parser.add_argument("--sides", help="default: slices,gate,mps,mps30; on a GPU in software: slices,gate")
    parser.add_argument("--sides-once", default="", metavar="SIDES", help="further sides, at the first load alone")
    parser.add_argument("--rounds", type=int, default=1, help="how often each pair is measured")
    parser.add_argument(
        "--verify", type=int, metavar="STEPS", help="compare results of so many steps, alone and beside the online program"
    )
    parser.add_argument("--faults", type=int, default=0, metavar="N", help="N faults of each kind beside a working online program")
    parser.add_argument("--fault-kinds", default=",".join(share_faults.KINDS), help="default: %(default)s")
    parser.add_argument("--ready", type=int, default=16, metavar="N", help="offline programs that wait for their fault, at most")
    parser.add_argument("--guard-memory", default="16GiB", metavar="SIZE", help="of the merged worker (%(default)s)")
    parser.add_argument("--day", type=float, nargs="?", const=600, metavar="SECONDS", help="a day's load in so long (600)")
    parser.add_argument("--pauses", type=float, metavar="SECONDS", help="bursts and pauses of an online program, for so long")
    parser.add_argument("--scheme", default="unix", choices=workers.SCHEMES)
    parser.add_argument("--programs", default="networks", choices=("networks", "plain"))
    parser.add_argument("--driver", default="nvidia")
    parser.add_argument("--commit", help="what is measured; asked from git if not given")
    options = parser.parse_args()
    if not options.join and not options.dxpu:
        parser.error("--dxpu PATH: the dxpu binary to measure")
    if options.join and not options.out:
        parser.error("--join needs --out DIR, a folder for the joined results")
    complete(options, parser)
    return options


def complete(options, parser):
    # Without --matrix, faults and a day are measured for themselves.
    options.has_pairs = options.matrix or not (options.faults or options.day or options.verify or options.pauses)
    for name, default in (ALL if options.matrix else FEW).items():
        setattr(options, name, (getattr(options, name) or default).split(","))
    try:
        options.loads = [float(load) for load in options.loads]
    except ValueError:
        parser.error("--loads: numbers with commas between them")
    is_given = bool(options.sides)
    options.sides = (options.sides or ("slices,gate,mps,mps30" if options.driver == "nvidia" else "slices,gate")).split(",")
    options.sides_once = [side for side in options.sides_once.split(",") if side]
    options.fault_kinds = options.fault_kinds.split(",")
    # Faults are measured behind a gate, on the sides that are given and have one.
    named = options.sides if is_given else ["gate"]
    options.fault_sides = [side for side in named if side in share_sides.SIDES and share_sides.SIDES[side].classes] or ["gate"]
    if options.verify is None:
        options.verify = VERIFY_STEPS if options.matrix else 0
    choices = {name: known.split(",") for name, known in ALL.items() if name != "loads"}
    choices |= {"sides": list(share_sides.SIDES), "sides_once": list(share_sides.SIDES), "fault_kinds": list(share_faults.KINDS)}
    for name, known in choices.items():
        if unknown := set(getattr(options, name)) - set(known):
            parser.error(f"--{name.replace('_', '-')}: {', '.join(sorted(unknown))}: there are {', '.join(known)}")


def measure(options, programs, rows):
    """The most important first, for runs that are cut short."""
    matrix = share_matrix.Matrix(options, programs, rows)
    request, work, load = options.onlines[0], options.works[0], options.loads[0]
    if options.has_pairs:
        programs.start_all(dict.fromkeys([*matrix.sides_alone, *options.sides, *options.sides_once]))
        matrix.measure(load, options.onlines, options.works)
    if options.verify:
        matrix.verify(request, options.works)
    if options.faults:
        share_faults.Faults(options, programs, rows, matrix).measure(request, load)
    if options.pauses:
        share_pause.Pauses(options, programs, rows, matrix).measure(request, options.works, load)
    if options.day:
        share_day.Day(options, programs, rows, matrix).measure(request, work)
    if options.has_pairs:
        for other in options.loads[1:]:
            matrix.measure(other, options.onlines, options.works)


def join(options):
    """Writes the results of several runs as those of one."""
    runs = []
    for folder in options.join:
        with open(os.path.join(folder, "share.json")) as file:
            runs.append(json.load(file))
    rows = share_rows.Rows(options, {})
    try:
        rows.results = share_join.join(runs)
    except share_join.CannotJoin as error:
        print(f"share.py: {error}", file=sys.stderr)
        return 1
    rows.write()
    print(f"{len(rows.results['rows'])} rows of {len(runs)} runs are in {options.out}")
    return 0


def end(*_):
    """A signal that ends the benchmark still lets it stop what it has started."""
    raise SystemExit(1)


def main():
    options = arguments()
    if options.join:
        return join(options)
    signal.signal(signal.SIGTERM, end)
    # Sides without MPS must not find a daemon through the variables of this process.
    for name in [name for name in os.environ if name.startswith("CUDA_MPS_")]:
        del os.environ[name]
    place = workers.Place()

    def worker(*more):
        return workers.Worker(options.dxpu, place, driver=options.driver, schemes=(options.scheme,), options=more)

    rows = share_rows.Rows(options, machine.describe(options.commit))
    programs = share_sides.Programs(options, worker, share_mps.Mps(place.make("mps")))
    try:
        measure(options, programs, rows)
    finally:
        programs.stop()
        rows.write()
        rows.write_files(programs.logs())
    place.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
