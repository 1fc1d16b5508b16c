"""What `dxpu run --timeline` writes: what ran, where, when and how long; also of a program that is killed."""
import json
import os
import signal
import time

import kit

BYTES = 4 << 18


def tell(record):
    with kit.Worker() as worker:
        record.part("kernels, copies and waits with names, streams, sizes and order", everything, worker)
        record.part("time on the network is as long as the network makes it", network, worker)
        record.part("a killed program leaves a file that can be read", killed, worker)
        record.part("processes of one program share a file", shared, worker)
        record.part("a session that is lost is followed by the next one", survives, worker)
        record.part("a file that cannot be written is told", unwritable, worker)
        record.part("a profiler is told of the timeline, once", profiler, worker)


def place():
    return os.path.join(kit.scratch, f"timeline-{time.monotonic_ns()}.json")


def read(path):
    """The events of a file, whether it was ended or not."""
    with open(path) as file:
        text = file.read()
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        # As viewers do: the bracket may be missing, and the last line may be torn.
        whole = text if text.endswith("}") else text[: text.rindex(",\n")]
        return json.loads(whole + "]")


def slices(events, **wanted):
    """Slices that match, by their begin, as (start, end, event) in microseconds."""
    found = [event for event in events if event["ph"] == "X" and all(event.get(key) == value for key, value in wanted.items())]
    return sorted(((event["ts"], event["ts"] + event["dur"], event) for event in found), key=lambda slice: slice[:2])


def check(events):
    """What every file must hold: lengths, names of rows, and slices that lie beside or within each other."""
    rows = {}
    for event in events:
        kit.hold(event["ph"] in "XMi", "an event of a kind that nobody writes:", event)
        if event["ph"] == "X":
            kit.hold(event["dur"] >= 0 and event["ts"] > 0, "a slice without a time:", event)
            rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    kit.hold(set(rows) <= named, "rows without a name:", set(rows) - named)
    slack = 0.002
    for row, found in rows.items():
        found.sort(key=lambda slice: (slice[0], -slice[1]))
        around = []
        for start, end in found:
            while around and around[-1] <= start + slack:
                around.pop()
            kit.hold(not around or end <= around[-1] + slack, "slices overlap in", row, start, end, around)
            around.append(end)


def took(kernel):
    """Measured, or what such a kernel usually takes."""
    arguments = kernel["args"]
    return arguments.get("gpu_us", arguments.get("estimated_us"))


def everything(worker):
    for scheme in kit.SCHEMES:
        path = place()
        worker.must(kit.program("timeline"), scheme=scheme, options=("--timeline", path))
        with open(path) as file:
            events = json.load(file)
        check(events)
        lost = [event for event in events if event["ph"] == "i" and event["name"] != "clocks aligned"]
        kit.hold(not lost, "something is missing:", lost)

        kernels = slices(events, cat="kernel", name="scale")
        kit.hold(len(kernels) == 20, len(kernels), "kernels of 20 over", scheme)
        kit.hold(all(event["args"]["grid"] == [64, 1, 1] and event["args"]["block"] == [256, 1, 1] for _, _, event in kernels))
        kit.hold(all(took(event) > 0 for _, _, event in kernels), "a kernel that took no time")
        rows = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
        spins = slices(events, cat="kernel", name="spin")
        # Those that measure how fast the device is are in the default stream.
        *measured, (spin_start, spin_end, spin) = spins
        kit.hold(all(rows[event["pid"], event["tid"]] == "GPU 0, default stream" for _, _, event in measured), rows, measured)
        streams = {event["tid"] for _, _, event in kernels}
        kit.hold(len(streams) == 1 and spin["tid"] not in streams, "kernels of two streams share a row")
        kit.hold(spin_start < kernels[-1][0] and kernels[0][0] < spin_end, "streams that ran at once did not:", spin, kernels)

        copies = [(event["name"], event["args"]["bytes"]) for _, _, event in slices(events, cat="copy")]
        expected = [("copy to the GPU", BYTES), ("copy on the GPU", BYTES // 2), ("copy to the host", BYTES), ("copy to the host", 4096)]
        kit.hold([copy for copy in copies if copy[1] > 4] == expected, "copies over", scheme, "are", copies)
        [(_, fill_end, fill)] = slices(events, name="fill")
        kit.hold(fill["args"]["bytes"] == 4096 and fill["tid"] == spin["tid"] and fill_end <= spin_start + 1, "the fill:", fill)
        [(graph_start, graph_end, graph)] = slices(events, cat="graph")
        [(nap_start, nap_end, nap)] = slices(events, cat="host function")
        kit.hold(nap_end - nap_start >= 20000, "a host function of 20 ms took", nap)
        kit.hold(kernels[-1][1] <= nap_start + 1 and nap_end <= graph_start + 1, "the first stream is out of order")
        kit.hold({graph["tid"], nap["tid"]} == streams and graph_end > graph_start, graph, nap)

        # The program waited for the work, and the wait ends after it; by how much the clocks may be wrong is in the file.
        error = max(event["args"]["error_us"] for event in events if event["name"] == "clocks aligned")
        waits = slices(events, cat="host wait", name="StreamSynchronize")
        kit.hold(len(waits) >= 2, "waits:", waits)
        kit.hold(waits[1][1] + error >= max(spin_end, graph_end), "the wait ends before the work", waits, spin, graph, error)
        kit.hold(slices(events, name="ModuleLoad"), "a module was loaded")


def network(worker):
    path = place()
    worker.must(kit.program("timeline"), options=("--timeline", path, "--delay", "4ms"))
    events = read(path)
    check(events)
    calls = slices(events, cat="host wait")
    ways = slices(events, cat="network", name="to the worker") + slices(events, cat="network", name="from the worker")
    for start, end, call in calls[2:-2]:
        on_the_way = sum(till - since for since, till, way in ways if way["tid"] == call["tid"] and start <= since and till <= end + 0.01)
        kit.hold(on_the_way >= 3900, call["name"], "was on the network for", on_the_way, "us, and a round trip takes 4 ms")


def killed(worker):
    path = place()
    with worker.start(kit.program("timeline"), "steps", options=("--timeline", path)) as program:
        program.wait_for("step 100\n")
        time.sleep(0.5)
        program.process.send_signal(signal.SIGKILL)
        program.ends(-signal.SIGKILL)
    events = read(path)
    check(events)
    kernels = slices(events, cat="kernel", name="scale")
    kit.hold(len(kernels) >= 100, "only", len(kernels), "kernels are left of more than 100")


def shared(worker):
    path = place()
    both = f"{kit.program('timeline')} & {kit.program('timeline')}; wait; {kit.program('timeline')}"
    worker.must("sh", "-c", both, options=("--timeline", path))
    with open(path) as file:
        events = json.load(file)
    check(events)
    processes = {event["pid"] for _, _, event in slices(events, cat="kernel", name="scale")}
    kit.hold(len(processes) == 3, "three processes ran kernels, the file has", processes)


def survives(worker):
    path = place()
    with worker.start(kit.program("timeline"), "steps", options=("--timeline", path, "--survive")) as program:
        program.wait_for("step 50\n")
        os.kill(worker.session_of(program.pid), signal.SIGKILL)
        said = program.said().count("step")
        kit.until("the program goes on", lambda: program.said().count("step") > said + 100, 60)
        time.sleep(0.5)
        program.process.send_signal(signal.SIGKILL)
        program.ends(-signal.SIGKILL)
    events = read(path)
    check(events)
    aligned = [event["ts"] for event in events if event["name"] == "clocks aligned"]
    kernels = slices(events, cat="kernel", name="scale")
    resumed = [event for event in events if event["name"] == "process_name" and event["args"]["name"].startswith("GPU at")]
    kit.hold(len(resumed) == 2, "two sessions had the program, the file shows", resumed)
    kit.hold(sum(start > max(aligned) - 1e5 for start, _, _ in kernels) > 50, "nothing is shown of the second session")


def unwritable(worker):
    path = os.path.join(kit.scratch, "no", "such", "directory", "trace.json")
    result = worker.run(kit.program("timeline"), options=("--timeline", path))
    kit.hold(result.returncode != 0 and path in result.stderr and "timeline" in result.stderr, result)
    # The library by itself goes on without one.
    result = worker.run(kit.program("timeline"), environment={"DXPU_TIMELINE": path})
    kit.hold(result.returncode == 0 and result.stderr.count("no timeline") == 1, result)
    notes = place()
    with open(notes, "w") as file:
        file.write("my notes")
    result = worker.run(kit.program("timeline"), environment={"DXPU_TIMELINE": notes})
    kit.hold(result.returncode == 0 and "no timeline" in result.stderr, result)
    with open(notes) as file:
        kit.hold(file.read() == "my notes", "a file that is no timeline was changed")


PROFILER = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
table = ctypes.c_void_p(1)
for _ in range(3):
    code = cuda.cuGetExportTable(ctypes.byref(table), bytes.fromhex("7cb63f9b9ca48e42a484beb66e6aed7f"))
    assert code == 1 and not table.value, (code, table)
"""


def profiler(worker):
    result = worker.run("python3", "-c", PROFILER)
    kit.hold(result.returncode == 0, result)
    kit.hold(result.stderr.count("dxpu run --timeline") == 1, "the warning is:", result.stderr)
