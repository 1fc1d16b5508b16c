"""First use of the GPU in a fresh process: seconds from the first call to the end of its work, after the framework is imported."""

import argparse
import json
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
sys.dont_write_bytecode = True

import torch  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kind", required=True)
parser.add_argument("--ours", required=True)
parser.add_argument("--device", default="cuda")
options = parser.parse_args()

began = time.perf_counter()
x = torch.zeros(4, device=options.device)
if options.device == "cuda":
    torch.cuda.synchronize()
took = time.perf_counter() - began

assert x.tolist() == [0.0] * 4
if options.device == "cuda":
    import witness

    if complaint := witness.complaint(options.kind, options.ours):
        sys.exit(complaint)
print(json.dumps({"first_use_s": took}))
