"""A workload in a fresh process: seconds to the first result, to the end of the first step, and of the second."""

import argparse
import json
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
sys.dont_write_bytecode = True

import torch  # noqa: E402
import torchvision  # noqa: E402, F401
import transformers  # noqa: E402

from workloads import WORKLOADS  # noqa: E402
from workloads.workload import Where  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--workload", required=True)
parser.add_argument("--kind", required=True)
parser.add_argument("--ours", required=True)
parser.add_argument("--device", default="cuda")
options = parser.parse_args()
transformers.logging.set_verbosity_error()
where = Where(options.device, options.device != "cuda")

# The framework is imported: what follows is the GPU's.
began = time.perf_counter()
assert torch.zeros(4, device=options.device).tolist() == [0.0] * 4
first_result = time.perf_counter()
prepared = WORKLOADS[options.workload].prepare(where)
where.synchronize()
is_ready = time.perf_counter()
prepared.step()
where.synchronize()
first_step = time.perf_counter()
prepared.step()
where.synchronize()
second_step = time.perf_counter()

if options.device == "cuda":
    import witness

    if complaint := witness.complaint(options.kind, options.ours):
        sys.exit(complaint)
times = {
    "first_result_s": first_result - began,
    "prepare_s": is_ready - first_result,
    "first_step_s": first_step - is_ready,
    "to_first_step_s": first_step - began,
    "second_step_s": second_step - first_step,
}
print(json.dumps(times | {"probe": prepared.probe()}))
