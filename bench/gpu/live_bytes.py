"""A program with so many bytes of live memory, of which it changes a part each second: one line a step, `step N seconds-since-the-epoch`.

    live_bytes.py --gb 20 --change 0.1 --seconds 20 [--rest-until FILE] [--end-at FILE]

Each step works for about a millisecond, adds one to the next pieces of memory and reads one word. At its end it has looked at every word:
`right` if each piece has what was added to it. With --rest-until it pauses after half of its time, says `rests`, and goes on when the
file is there. With --end-at it ends before its time when that file is there.
"""

import argparse
import os
import time

import cupy

PIECE_BYTES_MAX = 128 << 20
PIECES_MIN = 8
STEP_SECONDS = 0.01
THREADS = 256
add_one = cupy.RawKernel(
    """extern "C" __global__ void add_one(int *words, long long count) {
        for (long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x; at < count; at += (long long)gridDim.x * blockDim.x) {
            words[at] += 1;
        }
    }""",
    "add_one",
)

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--gb", type=float, required=True)
parser.add_argument("--change", type=float, required=True, help="the part of it that a second changes")
parser.add_argument("--seconds", type=float, required=True)
parser.add_argument("--rest-until", metavar="FILE")
parser.add_argument("--end-at", metavar="FILE")
options = parser.parse_args()

words = int(min(PIECE_BYTES_MAX, options.gb * 1e9 / PIECES_MIN)) // 4
# No cache in between: what is live is what the pieces have.
cupy.cuda.set_allocator(None)
pieces = [cupy.zeros(words, dtype=cupy.int32) for _ in range(int(options.gb * 1e9 / (4 * words)))]
added = [0] * len(pieces)
# Work beside the memory that is measured.
other = cupy.zeros(min(words, 16 << 20), dtype=cupy.int32)
each_second = options.change * len(pieces)
began, rested, steps, turn = time.monotonic(), 0.0, 0, 0


def grow(piece):
    add_one((min(4096, -(-len(piece) // THREADS)),), (THREADS,), (piece, cupy.int64(len(piece))))


# The measuring program waits for this line.
print("works", flush=True)
while (passed := time.monotonic() - began - rested) < options.seconds and not (options.end_at and os.path.exists(options.end_at)):
    if options.rest_until and passed > options.seconds / 2:
        since = time.monotonic()
        print("rests", flush=True)
        while not os.path.exists(options.rest_until):
            time.sleep(0.01)
        woken = time.monotonic()
        pieces[0][:1].get()
        print(f"woke after {(time.monotonic() - woken) * 1e3:.0f} ms", flush=True)
        rested, options.rest_until = time.monotonic() - since, None
    for _ in range(20):
        grow(other)
    # As many pieces as belong to the time that has passed; a pause is not made up for.
    wanted = int(passed * each_second) - turn
    due = min(wanted, max(1, int(each_second * STEP_SECONDS * 3)))
    for at in range(turn, turn + due):
        grow(pieces[at % len(pieces)])
        added[at % len(pieces)] += 1
    turn += max(wanted, 0)
    steps += 1
    assert int(other[0].get()) == 20 * steps
    print(f"step {steps} {time.time():.6f}", flush=True)
is_right = all(int(piece.min()) == count == int(piece.max()) for piece, count in zip(pieces, added))
print("right" if is_right else "wrong", flush=True)
