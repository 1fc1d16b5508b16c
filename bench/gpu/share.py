#!/usr/bin/env python3
"""Measures an online and an offline program on one GPU: each alone, both dedicated (time slices), and behind the gate.

    python3 bench/gpu/share.py --dxpu PATH [--seconds 8] [--loads 0.5] [--works train,product] [--faults] [--out DIR]

All programs run through one worker. The online one has requests at random arrivals; its latency counts from the arrival, so a
program that falls behind shows. Load 0.5 means that requests alone would keep it busy half of the time. The offline program's rate
is told as a share of its rate alone and dedicated. With --faults, offline programs are killed, do wrong and never end while the
online one works. Both sides compare their results with those they had alone, bit by bit.

    --programs plain --driver soft        tries the benchmark itself, on a GPU in software
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "lib"))
sys.dont_write_bytecode = True

import machine  # noqa: E402
import workers  # noqa: E402

PROGRAMS = os.path.join(HERE, "share_programs")
# The first steps after a pause find cold caches and clocks.
WARM_SECONDS = 0.5
# A fault's effect is looked for in requests that arrive within this time.
AFTER_FAULT_SECONDS = 0.8


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dxpu", required=True, help="the dxpu binary")
    parser.add_argument("--seconds", type=float, default=8, help="how long each row is measured")
    parser.add_argument("--loads", default="0.5", help="of the online program; the first one has all rows, the others the gate alone")
    parser.add_argument("--works", default="train,product", help="of the offline program")
    parser.add_argument("--rounds", type=int, default=1, help="how often the shared rows are measured")
    parser.add_argument("--faults", type=int, default=0, metavar="N", help="N faults of each kind beside a working online program")
    parser.add_argument("--scheme", default="unix", choices=workers.SCHEMES)
    parser.add_argument("--programs", default="networks", choices=("networks", "plain"))
    parser.add_argument("--driver", default="nvidia")
    parser.add_argument("--commit", help="what is measured; asked from git if not given")
    parser.add_argument("--out", help="folder for the results")
    return parser.parse_args()


class Program:
    """A program that does what it is told. `order` begins, `answer` waits for the end."""

    def __init__(self, worker, options, role, given_class):
        words = () if given_class is None else ("--class", given_class)
        script = os.path.join(PROGRAMS, options.programs + ".py")
        command = worker.client(options.scheme, sys.executable, script, role, options=words)
        self.name = f"{given_class or 'dedicated'} {role}"
        self.process = subprocess.Popen(
            command, env=worker.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def order(self, **order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {self.name} program ended with {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"the {self.name} program: {answer['error']}")
        return answer

    def do(self, **order):
        self.order(**order)
        return self.answer()

    def stop(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def online_figures(answer):
    latencies = answer["latencies_us"]
    figures = {f"p{int(share * 1000) / 10:g}_us": percentile(latencies, share) for share in (0.5, 0.9, 0.99, 0.999)}
    return figures | {"requests": len(latencies), "longest_us": max(latencies, default=0), "right": answer["right"]}


def rate(answer, since, until):
    """Steps a second within a span of time."""
    ends = [end for end in answer["ends"] if since <= end <= until]
    return (len(ends) - 1) / (ends[-1] - ends[0]) if len(ends) > 1 else 0.0


class Bench:
    def __init__(self, worker, options, about):
        self.worker, self.options, self.about, self.service_us = worker, options, about, None
        made = {
            (kind, role): Program(worker, options, role, given)
            for kind, role, given in (
                ("dedicated", "online", None),
                ("gate", "online", "online"),
                ("dedicated", "offline", None),
                ("gate", "offline", "offline"),
            )
        }
        self.programs, self.rows, self.alone = made, [], {}
        for program in made.values():
            self.tried(f"start of the {program.name} program", program.answer)
        self.service_us = statistics.median(
            made["dedicated", "online"].do(do="service", count=100)["service_us"] for _ in range(3)
        )

    def online_alone(self, kind, load):
        answer = self.programs[kind, "online"].do(do="online", gap_us=self.service_us / load, seconds=self.options.seconds)
        self.row({"row": f"online alone, {kind}", "load": load, "online": online_figures(answer)})

    def offline_alone(self, kind, work):
        program, seconds = self.programs[kind, "offline"], self.options.seconds
        program.do(do="offline", work=work, seconds=WARM_SECONDS)
        answer = program.do(do="offline", work=work, seconds=seconds)
        each = rate(answer, answer["ends"][0], answer["ends"][-1])
        self.alone.setdefault(work, each)
        self.row({"row": f"offline alone, {kind}", "work": work, "offline": self.offline_figures(answer, work, each)})

    def offline_figures(self, answer, work, each):
        return {"per_second": each, "of_alone": each / self.alone[work] if self.alone.get(work) else None, "right": answer["right"]}

    def shared(self, kind, work, load):
        online, offline = self.programs[kind, "online"], self.programs[kind, "offline"]
        seconds = self.options.seconds
        offline.order(do="offline", work=work, seconds=seconds + 2 * WARM_SECONDS)
        time.sleep(WARM_SECONDS)
        began = time.monotonic()
        told = online.do(do="online", gap_us=self.service_us / load, seconds=seconds)
        ended = time.monotonic()
        answer = offline.answer()
        each = rate(answer, began, min(ended, answer["ends"][-1]))
        figures = {"online": online_figures(told), "offline": self.offline_figures(answer, work, each)}
        self.row({"row": f"both, {kind}", "load": load, "work": work, "took_s": ended - began, **figures})

    def row(self, row):
        self.rows.append(row)
        print(shown(row), flush=True)
        if self.options.out:
            # After each row: a run that is cut short keeps what it has measured.
            os.makedirs(self.options.out, exist_ok=True)
            told = {"about": self.about, "options": vars(self.options), "service_us": self.service_us, "rows": self.rows}
            with open(os.path.join(self.options.out, "share.json"), "w") as file:
                json.dump(told, file, indent=1)

    def tried(self, what, body, *values):
        """A row that fails is told, and the others are measured all the same."""
        try:
            body(*values)
        except (RuntimeError, OSError) as error:
            self.row({"row": what, "error": str(error)})

    def measure(self):
        loads = [float(load) for load in self.options.loads.split(",")]
        works = self.options.works.split(",")
        for kind in ("dedicated", "gate"):
            self.tried(f"online alone, {kind}", self.online_alone, kind, loads[0])
        self.pair(works[0], loads[0])
        if self.options.faults:
            self.tried("faults", self.faults, self.options.faults)
        for work in works[1:]:
            self.pair(work, loads[0])
        for load in loads[1:]:
            self.tried("online alone", self.online_alone, "dedicated", load)
            self.tried("both, gate", self.shared, "gate", works[0], load)

    def pair(self, work, load):
        for kind in ("dedicated", "gate"):
            self.tried(f"offline alone, {kind}", self.offline_alone, kind, work)
        for _ in range(self.options.rounds):
            for kind in ("dedicated", "gate"):
                self.tried(f"both, {kind}", self.shared, kind, work, load)

    def faults(self, count):
        """Each kind of fault `count` times, beside an online program; the longest request around each."""
        kinds = [kind for kind in (kill_client, kill_session, illegal, endless) for _ in range(count)]
        online = self.programs["gate", "online"]
        load = float(self.options.loads.split(",")[0])
        began = time.monotonic()
        online.order(do="online", gap_us=self.service_us / load, seconds=600, stop=True)
        happened = []
        for kind in kinds:
            happened.append((kind.__name__, *kind(self)))
            # So that each fault has requests of its own to be seen in.
            time.sleep(AFTER_FAULT_SECONDS)
        online.order(do="stop")
        answer = online.answer()
        found = {}
        for name, since, said in happened:
            is_near = [since <= at <= since + AFTER_FAULT_SECONDS for at in answer["arrivals"]]
            near = [us for us, near in zip(answer["latencies_us"], is_near) if near]
            found.setdefault(name, []).append({"at_s": since - began, "longest_us": max(near, default=None), "said": said})
        figures = online_figures(answer)
        self.row({"row": "faults", "load": load, "online": figures, "faults": found})

    def victim(self, role):
        script = os.path.join(PROGRAMS, "plain.py")
        command = self.worker.client(self.options.scheme, sys.executable, script, role, options=("--class", "offline"))
        pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
        process = subprocess.Popen(command, env=self.worker.environment, text=True, **pipes)
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"plain.py {role}: {process.communicate()[1]}")
        return process

    def stop(self):
        for program in self.programs.values():
            program.stop()


def last_line(process, seconds):
    """How a program ended: the last line it wrote to its error output, or that it was killed."""
    try:
        _, text = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "killed"
    return (text.strip().splitlines() or [f"status {process.returncode}"])[-1][:160]


def kill_client(bench):
    process = bench.victim("busy")
    time.sleep(0.5)
    since = time.monotonic()
    process.send_signal(signal.SIGKILL)
    return since, last_line(process, 5)


def kill_session(bench):
    process = bench.victim("busy")
    time.sleep(0.5)
    session = bench.worker.session_of(process.pid)
    since = time.monotonic()
    os.kill(session, signal.SIGKILL)
    return since, last_line(process, 5)


def illegal(bench):
    process = bench.victim("illegal")
    since = time.monotonic()
    return since, last_line_after(process, 5)


def endless(bench):
    process = bench.victim("endless")
    since = time.monotonic()
    return since, last_line_after(process, 2.5)


def last_line_after(process, seconds):
    process.stdin.write("\n")
    process.stdin.flush()
    return last_line(process, seconds)


def shown(row):
    if "error" in row:
        return f"{row['row']:26}  FAILED: {row['error'][:300]}"
    words = [f"{row['row']:26}", f"load {row['load']:.1f}" if "load" in row else "        ", f"{row.get('work', ''):8}"]
    if online := row.get("online"):
        times = "/".join(f"{online[name] / 1e3:.2f}" for name in ("p50_us", "p90_us", "p99_us", "longest_us"))
        words.append(f"online p50/p90/p99/max {times} ms of {online['requests']}{'' if online['right'] else ' WRONG'}")
    if offline := row.get("offline"):
        share = offline["of_alone"]
        words.append(f"offline {offline['per_second']:.2f}/s = {share:.3f}{'' if offline['right'] else ' WRONG'}")
    for name, found in row.get("faults", {}).items():
        longest = [f"{one['longest_us'] / 1e3:.1f}" if one["longest_us"] else "-" for one in found]
        words.append(f"\n    {name:14} longest request {', '.join(longest)} ms; {found[-1]['said']}")
    return "  ".join(words)


def main():
    options = arguments()
    place = workers.Place()
    about = machine.describe(options.commit)
    with workers.Worker(options.dxpu, place, driver=options.driver, schemes=(options.scheme,)) as worker:
        try:
            bench = Bench(worker, options, about)
            print(f"service {bench.service_us:.0f} us", flush=True)
            bench.measure()
            bench.stop()
        finally:
            if options.out:
                os.makedirs(options.out, exist_ok=True)
                with open(os.path.join(options.out, "worker.log"), "w") as file:
                    file.write(worker.log())
    place.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
