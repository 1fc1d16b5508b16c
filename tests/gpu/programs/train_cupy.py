"""The same as train.py without PyTorch: fits a line by gradient descent, in whole kernels that the soft driver can run too."""

import sys
import time

import cupy
from say import note, same

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 40
x = cupy.linspace(-1, 1, 256)
weights = cupy.zeros(256)
errors = (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError)
try:
    for n in range(steps):
        weights -= 0.01 * (weights - cupy.sin(x * 3))
        value = float(cupy.abs(weights).max())
        print(f"step {n} {time.time():.6f} {value.hex()}", flush=True)
except errors as error:
    told = time.time()
    same("error", str(error).splitlines()[0])
    note("type", type(error).__name__)
    print(f"error-at {told:.6f}", flush=True)
    began = time.monotonic()
    for body in (lambda: x + 1, cupy.cuda.runtime.deviceSynchronize, x.get, lambda: cupy.zeros(3)):
        try:
            body()
            same("later-call", "no error")
        except errors:
            same("later-call", "error")
    note("later-calls-seconds", time.monotonic() - began)
    print("ended-well", flush=True)
