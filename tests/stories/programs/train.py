"""train STOP [PAUSE]: a small regression with CuPy that goes on until the file STOP has the number of steps to make.

Prints "working" after the first step, and at the end every loss to the last bit. While the file PAUSE exists it makes no CUDA
call.
"""
import os
import sys
import time

import cupy
import numpy

stop, pause = sys.argv[1], (sys.argv[2:] + [""])[0]
ROWS, COLUMNS = 512, 16

source = numpy.random.default_rng(20261116)
inputs = cupy.asarray(source.standard_normal((ROWS, COLUMNS), dtype=numpy.float32))
targets = cupy.asarray(numpy.tanh(source.standard_normal(ROWS, dtype=numpy.float32)))
weights = cupy.zeros(COLUMNS, dtype=numpy.float32)
momentum = cupy.zeros(COLUMNS, dtype=numpy.float32)


def wanted():
    """How many steps, once that is decided."""
    try:
        with open(stop) as file:
            return int(file.read())
    except (FileNotFoundError, ValueError):
        return None


losses = []
while True:
    steps = wanted()
    if steps is not None and len(losses) >= steps:
        break
    while pause and os.path.exists(pause):
        time.sleep(0.05)
    guess = cupy.tanh((inputs * weights).sum(axis=1))
    error = guess - targets
    losses.append(float((error * error).mean()))
    gradient = (inputs * (error * (1 - guess * guess))[:, None]).mean(axis=0)
    momentum = numpy.float32(0.9) * momentum + gradient
    weights = weights - numpy.float32(0.05) * momentum
    if len(losses) == 1:
        print("working", flush=True)
    if len(losses) % 20 == 0:
        print("step", len(losses), flush=True)

for number, loss in enumerate(losses[:steps]):
    print("loss", number, loss.hex())
print("weights", weights.get().tobytes().hex())
