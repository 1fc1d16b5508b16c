"""`dxpu trace` and `dxpu inject`: our own client on a soft GPU stands in for the machine's driver. Counts are exact, results unchanged,
injected time is what was asked, and a recording that is not whole is refused."""
import json
import os
import sys

import kit

ROUNDS = 20
# What programs/counts.c does in a round, besides the graph launches at its end.
LAUNCHES, MEMSETS = 5, 2
COPIES = {
    ("host to device", False, True, 4096): 1,
    ("host to device", False, False, 4096): 1,
    ("host to device", True, False, 65536): 1,
    ("device to host", False, True, 4096): 1,
    ("device to device", False, False, 4096): 1,
}


def tell(record):
    with kit.Worker() as worker:
        record.part("every call is counted, and results stay", counted, worker)
        record.part("only what is marked", marked, worker)
        record.part("a profile is what `model predict` reads", predicted, worker)
        record.part("a profile that was cut or changed is refused", refused, worker)
        record.part("a program that leaves by _exit is not half recorded", unfinished, worker)
        record.part("codes of programs come through", codes, worker)
        record.part("injected time is what was asked", injected, worker)
        record.part("nothing is injected at the native round trip", nothing_injected, worker)
        record.part("one process records and injects by turns", by_turns, worker)
        record.part("a driver that does nothing, and does again", does_nothing, worker)
        record.part("a machine without a driver", without_a_driver, worker)


def traced(worker, name, *words, code=0):
    """Runs the program under `dxpu trace` under `dxpu run`; its output, and the reports."""
    out, report = (os.path.join(worker.directory, f"{name}.{ending}") for ending in ("profile", "json"))
    options = [word for word in words if str(word).startswith("--")]
    rest = [word for word in words if word not in options]
    said = worker.must(kit.dxpu, "trace", "--out", out, "--report", report, *options, "--", *rest, code=code)
    with open(report) as file:
        return said, out, json.load(file)


def counted(worker):
    plain = worker.must(kit.program("counts"), ROUNDS)
    said, _, reports = traced(worker, "counted", kit.program("counts"), ROUNDS)
    kit.hold(said == plain, "without recording", plain, "with", said)
    kit.hold(len(reports) == 1, "profiles:", len(reports))
    report = reports[0]
    found = {key: report[key] for key in ("launches", "graph_launches", "memsets", "waits", "queries")}
    wanted = {
        "launches": LAUNCHES * ROUNDS + ROUNDS,
        "graph_launches": ROUNDS,
        "memsets": MEMSETS * ROUNDS,
        "waits": 2 * ROUNDS + 1,
        "queries": 0,
    }
    kit.hold(found == wanted, "counted", found, "not", wanted)
    copies = {(c["direction"], c["pinned"], c["waits"], c["bytes_from"]): (c["count"], c["bytes"]) for c in report["copies"]}
    wanted = {key: (count * ROUNDS, count * ROUNDS * key[3]) for key, count in COPIES.items()}
    kit.hold(copies == wanted, "copies", copies, "not", wanted)
    kernels = {kernel["name"]: kernel["launches"] for kernel in report["kernels"]}
    wanted = {"scale": 4 * ROUNDS, "spin": ROUNDS, "graph of 3 kernels": ROUNDS}
    kit.hold(kernels == wanted, "kernels", kernels, "not", wanted)
    measured = report["measured"]
    kit.hold(measured["operations"] == (LAUNCHES + MEMSETS + len(COPIES) + 1) * ROUNDS, "operations", measured)
    kit.hold(0 < measured["sampled"] < measured["operations"], "a sample was to be timed:", measured)
    kit.hold(report["kernel_us"] > 0, "kernels took no time")
    return f"{measured['sampled']} of {measured['operations']} operations timed"


def marked(worker):
    said, _, reports = traced(worker, "marked", "--range=profiler", kit.program("counts"), ROUNDS, "marked")
    kit.hold(said == worker.must(kit.program("counts"), ROUNDS), "results changed")
    kit.hold(len(reports) == 1, "profiles:", len(reports))
    kit.hold(reports[0]["launches"] == LAUNCHES * ROUNDS // 2, "launches", reports[0]["launches"])
    kit.hold(reports[0]["graph_launches"] == 0, "graphs came after the mark")
    result = worker.run(kit.dxpu, "trace", "--range=profiler", "--out", os.devnull, "--", kit.program("counts"), 1)
    kit.hold(result.returncode == 1 and "never called cuProfilerStart" in result.stderr, result.returncode, result.stderr)


def predicted(worker):
    _, profile, reports = traced(worker, "predicted", kit.program("counts"), ROUNDS)
    for plane in ("pcie", "api"):
        words = ["model", "predict", "--profile", profile, "--plane", plane, "--rtt", "50us", "--json"]
        answer = json.loads(worker.must(kit.dxpu, *words))
        kit.hold(answer["profile"]["launches"] == reports[0]["launches"], "predict counts", answer["profile"]["launches"])
        kit.hold(0 < answer["kept_pct"] < 150, plane, "keeps", answer["kept_pct"])
        kit.hold(answer["curve"], "there is no curve")


def refused(worker):
    _, profile, _ = traced(worker, "whole", kit.program("counts"), 2)
    with open(profile, "rb") as file:
        whole = file.read()
    cut = os.path.join(worker.directory, "cut.profile")

    def says(content, *words):
        with open(cut, "wb") as file:
            file.write(content)
        result = worker.run(kit.dxpu, "model", "predict", "--profile", cut, "--plane", "pcie", "--rtt", "8us")
        kit.hold(result.returncode == 1, "it was taken:", result.returncode, result.stdout)
        for word in ("cut.profile", "line", *words):
            kit.hold(word in result.stderr, repr(result.stderr), "does not say", word)

    says(whole[: len(whole) // 2], "cut off")
    says(whole[: whole.rindex(b'{"op":"end"')], "without its `end` line")
    says(whole.replace(b'"to":"host","bytes":4096', b'"to":"host","bytes":4095', 1), "checksum")
    says(b"\x7fELF\n", "no profile")


def unfinished(worker):
    out = os.path.join(worker.directory, "unfinished.profile")
    result = worker.run(kit.dxpu, "trace", "--out", out, "--", kit.program("counts"), 2, "dirty")
    kit.hold(result.returncode == 1, "ended with", result.returncode)
    kit.hold("ended before its log did" in result.stderr, result.stderr)
    kit.hold(not os.path.exists(out), "a part of a recording was written")


def codes(worker):
    for command in ("trace", "inject"):
        options = ["--out", os.path.join(worker.directory, "codes.profile")] if command == "trace" else ["--rtt", "8us"]
        result = worker.run(kit.dxpu, command, *options, "--", "sh", "-c", "exit 7")
        kit.hold(result.returncode == 7, command, "ended with", result.returncode, result.stderr)
        result = worker.run(kit.dxpu, command, *options, "--", "sh", "-c", "kill -TERM $$")
        kit.hold(result.returncode == 143, command, "ended with", result.returncode, result.stderr)
        result = worker.run(kit.dxpu, command, *options, "--", "/nowhere/at/all")
        kit.hold(result.returncode == 127, command, "ended with", result.returncode, result.stderr)


def injected(worker):
    report = os.path.join(worker.directory, "injected.json")
    rtt_us, native_us = 501.2, 1.2
    inject = [kit.dxpu, "inject", "--rtt", f"{rtt_us}us", "--report", report, "--"]
    said = worker.must(*inject, kit.program("counts"), ROUNDS)
    kit.hold(said == worker.must(kit.program("counts"), ROUNDS), "results changed")
    with open(report) as file:
        classes = {share["class"]: share for share in json.load(file)["injected"]}
    added_us = rtt_us - native_us
    operations = {
        "kernels and graphs": ((LAUNCHES + 1) * ROUNDS, added_us),
        "memsets": (MEMSETS * ROUNDS, added_us),
        "copies to the host": (ROUNDS, added_us / 2),
    }
    for name, (count, each_us) in operations.items():
        share = classes[name]
        kit.hold(share["operations"] == count, name, share["operations"], "not", count)
        kit.hold(abs(share["asked_us"] / (count * each_us) - 1) < 0.01, name, "asked", share["asked_us"])
        # A soft GPU shares the processor: fillers last longer where others run, never shorter.
        kit.hold(share["added_us"] > 0.95 * share["asked_us"], name, "asked", share["asked_us"], "added", share["added_us"])
    # 4096 bytes wait for the round trip; 65536 bytes at 140 x 128 bytes in 501.2 us take longer than that.
    uploads = classes["copies to the device"]
    kit.hold(uploads["operations"] == 3 * ROUNDS, "uploads", uploads)
    slowed_us = 65536 / (140 * 128) * rtt_us
    asked_us = ROUNDS * (2 * added_us + slowed_us)
    kit.hold(0.9 * asked_us < uploads["asked_us"] <= asked_us, "uploads asked", uploads["asked_us"], "of at most", asked_us)
    kit.hold(uploads["added_us"] > 0.95 * uploads["asked_us"], "uploads", uploads)
    total = {key: sum(share[key] for share in classes.values()) for key in ("asked_us", "added_us")}
    return f"asked {total['asked_us'] / 1e3:.1f} ms, added {total['added_us'] / 1e3:.1f} ms"


def by_turns(worker):
    report, profile = (os.path.join(worker.directory, name) for name in ("turns.json", "turns.profile"))
    words = ["inject", "--rtt", "8us", "--profile", profile, "--report", report, "--"]
    program = [sys.executable, os.path.join(kit.HERE, "programs", "turns.py")]
    kit.hold(worker.must(kit.dxpu, *words, *program) == "done\n", "the program did not come to its end")
    with open(report) as file:
        said = json.load(file)
    kit.hold([one["memsets"] for one in said["profiles"]] == [10], "recorded", said["profiles"])
    fills = next(share for share in said["injected"] if share["class"] == "memsets")
    kit.hold((fills["operations"], fills["asked_us"]) == (10, 5000.0), "injected", fills)
    # Without them the library has no such functions, and nothing is switched.
    plain = worker.run(*program)
    kit.hold(plain.returncode == 1 and "dxpuInject" in plain.stderr, plain.returncode, plain.stderr)


def does_nothing(worker):
    program = [sys.executable, os.path.join(kit.HERE, "programs", "nothing.py")]
    kit.hold(worker.must(kit.dxpu, "inject", "--rtt", "8us", "--", *program) == "done\n", "the program did not come to its end")
    # `dxpu inject` alone has the switch: a recording leaves nothing out.
    out = os.path.join(worker.directory, "does.profile")
    refused = worker.run(kit.dxpu, "trace", "--out", out, "--", *program)
    kit.hold(refused.returncode == 1 and "answered 800" in refused.stderr, refused.returncode, refused.stderr)


def nothing_injected(worker):
    report = os.path.join(worker.directory, "nothing.json")
    worker.must(kit.dxpu, "inject", "--rtt", "1.2us", "--tags", 1000000, "--report", report, "--", kit.program("counts"), 2)
    with open(report) as file:
        shares = json.load(file)["injected"]
    kit.hold(all(share["operations"] == 0 for share in shares), "something was injected:", shares)


def without_a_driver(worker):
    """Not under `dxpu run`: this machine has no driver of its own to find, or has one, which is not ours to judge here."""
    missing = os.path.join(worker.directory, "missing", "libcuda.so.1")
    command = [kit.dxpu, "trace", "--driver", missing, "--out", os.devnull, "--", kit.program("counts"), "1"]
    result = kit.subprocess.run(command, env=worker.environment, capture_output=True, text=True, timeout=kit.HANG_SECONDS)
    kit.hold(result.returncode != 0, "it ran without a driver")
    kit.hold("cannot be loaded" in result.stderr and missing in result.stderr, result.stderr)
