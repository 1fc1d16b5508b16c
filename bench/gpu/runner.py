"""One process that runs workloads when it is told to, so that starting a framework is paid once and not per measurement.

Reads a JSON object a line and answers with one: {"do": "prepare", "workload": …}, {"do": "measure", "seconds": …}, {"do": "cycle", …},
{"do": "drop"}, {"do": "end"}. An error is an answer too: {"error": text}.
"""

import argparse
import gc
import json
import os
import sys
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
sys.dont_write_bytecode = True

import figures  # noqa: E402
import passthrough  # noqa: E402
import witness  # noqa: E402
from workloads import WORKLOADS  # noqa: E402
from workloads.workload import Where  # noqa: E402

# A median of fewer samples says nothing; a slow workload takes longer than it was told.
BLOCKS_MIN = 3
# Steps in which the GPU is watched.
GPU_STEPS = 4
# Steps in which whoever records sees every kernel often enough to know its duration.
TIMING_STEPS = 12


class Runner:
    def __init__(self, options):
        self.where = Where(options.device, options.tiny)
        self.kind, self.ours = options.kind, options.ours
        # While steps are timed; without a GPU there is no driver to tell.
        self.does_nothing = options.kind == "limit" and options.device == "cuda"
        self.workload = self.prepared = None

    def hello(self):
        """Imports everything and touches the GPU, then says who this is; a process with the wrong driver measures nothing."""
        import torch
        import torchvision  # noqa: F401
        import transformers

        transformers.logging.set_verbosity_error()
        answer = {"torch": torch.__version__, "transformers": transformers.__version__}
        if self.where.device == "cuda":
            torch.empty(1, device="cuda")
            self.where.synchronize()
            answer["gpu"] = torch.cuda.get_device_name()
            answer["cudnn"] = torch.backends.cudnn.version()
        self.testify()
        if self.does_nothing:
            passthrough.inject(0.0, 0.0)
        return answer

    def testify(self):
        if self.where.device == "cuda" and (complaint := witness.complaint(self.kind, self.ours)):
            raise RuntimeError(complaint)

    def prepare(self, workload):
        """Sets a workload up and runs it until it is warm; what it computed."""
        self.drop()
        self.workload = WORKLOADS[workload]
        began = time.perf_counter()
        self.prepared = self.workload.prepare(self.where)
        if self.kind == "traced":
            passthrough.trace(True)
            passthrough.trace_anew()
        for _ in range(1 if self.where.is_tiny else self.workload.warm_up_steps):
            self.prepared.step()
        self.where.synchronize()
        # Before anything else is run: these are numbers after so many steps.
        probe = self.prepared.probe()
        for _ in range(TIMING_STEPS if self.kind == "traced" else 0):
            self.prepared.step()
        self.where.synchronize()
        return {"probe": probe, "seconds": time.perf_counter() - began}

    def measure(self, seconds, is_marked=False, inject=None, blocks_min=BLOCKS_MIN):
        """Milliseconds per step, by samples, over about this long.

        `is_marked` marks the time for `dxpu trace --range profiler`; `inject` is what `dxpu inject` is to inject from here on: the
        added round trip in nanoseconds and the read rate in bytes a second; what it came to is in the answer. A repetition has at
        least `blocks_min` samples.
        """
        if inject is not None:
            passthrough.inject(*inject)
            injected = passthrough.injected()
        if self.kind == "gpu" and self.where.device == "cuda":
            return self.gpu_time()
        workload, step = self.workload, self.prepared.step
        synchronize = (lambda: None) if workload.waits_itself else self.where.synchronize
        clock, samples = time.perf_counter, []
        # What ran before must not be waited for by the first sample. Collections of garbage would hit any of them.
        self.where.synchronize()
        gc.collect()
        gc.disable()
        if is_marked:
            passthrough.trace(True)
            passthrough.mark(True)
        if self.does_nothing:
            passthrough.nothing(True)
        try:
            end = clock() + seconds
            while True:
                began = clock()
                for _ in range(workload.block):
                    step()
                synchronize()
                now = clock()
                samples.append((now - began) * 1e3 / workload.block)
                if now >= end and len(samples) >= blocks_min:
                    break
        finally:
            if self.does_nothing:
                passthrough.nothing(False)
            if is_marked:
                passthrough.mark(False)
            gc.enable()
        self.testify()
        more = {}
        if inject is not None:
            more["injected"] = {name: value - injected[name] for name, value in passthrough.injected().items()}
        return more | {
            "median_ms": figures.median(samples),
            "best_ms": min(samples),
            "sum_ms": sum(samples),
            "count": len(samples),
            "samples_ms": figures.percentiles(samples),
        }

    def gpu_time(self):
        """Milliseconds per step in which the GPU worked: kernels, copies and fills, where they overlap counted once."""
        from torch.profiler import ProfilerActivity, profile

        self.where.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as watched:
            for _ in range(GPU_STEPS):
                self.prepared.step()
            self.where.synchronize()
        is_of_gpu = lambda event: str(event.device_type()).endswith("CUDA")
        events = [event for event in watched.profiler.kineto_results.events() if is_of_gpu(event)]
        assert events, "the GPU was not seen working"
        busy_ns, end_ns = 0, 0
        for begin, ns in sorted((event.start_ns(), event.duration_ns()) for event in events):
            busy_ns += max(0, begin + ns - max(begin, end_ns))
            end_ns = max(end_ns, begin + ns)
        ms = busy_ns / 1e6 / GPU_STEPS
        return {"median_ms": ms, "best_ms": ms, "sum_ms": ms * GPU_STEPS, "count": 1, "samples_ms": [ms]}

    def cycle(self, plan, block, seconds, is_reversed=False):
        """One short sample of everything in `plan`, and again in the other order, for about so long.

        The plan is a list of [key, what to inject, whether to record]; what to inject is as in `measure`. A machine that changes its
        speed within seconds changes it for all of them. Answers with a list of cycles, each a list of [key, milliseconds per step,
        what was injected].
        """
        step, synchronize, clock = self.prepared.step, self.where.synchronize, time.perf_counter
        cycles, ends = [], clock() + seconds
        gc.disable()
        try:
            while not cycles or clock() < ends:
                gc.collect()
                found = []
                for key, inject, is_recorded in plan[::-1] if len(cycles) % 2 != is_reversed else plan:
                    passthrough.inject(*inject)
                    passthrough.trace(is_recorded)
                    before = passthrough.injected()
                    if is_recorded:
                        passthrough.mark(True)
                    began = clock()
                    for _ in range(block):
                        step()
                    synchronize()
                    ms = (clock() - began) * 1e3 / block
                    if is_recorded:
                        passthrough.mark(False)
                    after = passthrough.injected()
                    found.append([key, ms, {name: value - before[name] for name, value in after.items()}])
                cycles.append(found)
        finally:
            passthrough.inject(0.0, 0.0)
            gc.enable()
        self.testify()
        return {"cycles": cycles}

    def drop(self):
        """Forgets the workload and gives its memory back."""
        self.workload = self.prepared = None
        gc.collect()
        if self.where.device == "cuda":
            import torch

            self.where.synchronize()
            torch.cuda.empty_cache()
        return {}

    def is_usable(self):
        """Whether the GPU still answers after an error; some errors end every later call of a process."""
        try:
            self.drop()
            import torch

            return torch.zeros(1, device=self.where.device).item() == 0.0
        except Exception:
            return False


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", required=True, choices=["native", "remote", "traced", "limit", "gpu"])
    parser.add_argument("--ours", required=True, help="the folder of dxpu's libraries")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    # Answers keep the standard output to themselves; whatever libraries print goes with the errors.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(body, **arguments):
        try:
            said = body(**arguments)
        except Exception as error:
            traceback.print_exc()
            said = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:500], "is_usable": runner.is_usable()}
        print(json.dumps(said), file=answers)

    runner = Runner(options)
    answer(runner.hello)
    for line in sys.stdin:
        request = json.loads(line)
        what = request.pop("do")
        if what == "end":
            break
        answer({"prepare": runner.prepare, "measure": runner.measure, "cycle": runner.cycle, "drop": runner.drop}[what], **request)


if __name__ == "__main__":
    main()
