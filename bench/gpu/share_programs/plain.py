"""Work of a few instructions through the driver's own functions, without a framework: for tests of this benchmark on GPUs in
software, and for programs that are killed or do wrong.

    plain.py online | offline      as the networks, in small
    plain.py busy                  launches kernels until it is ended

The others wait for a line on standard input before they do it:

    plain.py held                  as busy
    plain.py illegal               writes where no memory is
    plain.py endless               launches a kernel that never ends
    plain.py long                  launches kernels of 10 ms as wide as the GPU, for 0.3 s
    plain.py greedy                takes memory until it gets no more, keeps it and launches kernels for 0.2 s
"""

import ctypes
import sys
import time

from serve import Request, Server, Work

PTX = b"""
.version 7.0
.target sm_70
.address_size 64

.visible .entry count(.param .u64 p_word, .param .u64 p_rounds)
{
    .reg .u64 %word, %rounds, %at;
    .reg .pred %p;
    ld.param.u64 %word, [p_word];
    ld.param.u64 %rounds, [p_rounds];
    mov.u64 %at, 0;
again:
    add.u64 %at, %at, 1;
    setp.lt.u64 %p, %at, %rounds;
    @%p bra again;
    st.global.u64 [%word], %at;
    ret;
}

.visible .entry endless(.param .u64 p_word)
{
    .reg .u64 %word, %seen;
    .reg .pred %p;
    ld.param.u64 %word, [p_word];
again:
    ld.volatile.global.u64 %seen, [%word];
    setp.ne.u64 %p, %seen, 77;
    @%p bra again;
    ret;
}
"""
ROUNDS = 200
LONG_SECONDS = 0.010
LONG_FOR_SECONDS = 0.3
GREEDY_FOR_SECONDS = 0.2
# Large pieces first, so that a large GPU is full after some hundred calls; then small ones for the rest.
PIECES_BYTES = (1 << 30, 64 << 20)
MULTIPROCESSOR_COUNT = 16

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        raise RuntimeError(f"{name}: error {code}")


class Device:
    def __init__(self):
        device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        call("cuInit", 0)
        call("cuDeviceGet", ctypes.byref(device), 0)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        call("cuCtxSetCurrent", context)
        call("cuModuleLoadData", ctypes.byref(module), PTX)
        self.word = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self.word), ctypes.c_size_t(64))
        self.clear()
        multiprocessors = ctypes.c_int()
        call("cuDeviceGetAttribute", ctypes.byref(multiprocessors), MULTIPROCESSOR_COUNT, device)
        self.multiprocessors = multiprocessors.value
        self.functions = {}
        for name in ("count", "endless"):
            function = ctypes.c_void_p()
            call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
            self.functions[name] = function

    def clear(self):
        call("cuMemsetD8_v2", self.word, ctypes.c_ubyte(0), ctypes.c_size_t(64))

    def launch(self, name, *values, blocks=1, threads=1):
        held = [ctypes.c_uint64(value) for value in values]
        places = (ctypes.c_void_p * len(held))(*(ctypes.addressof(value) for value in held))
        call("cuLaunchKernel", self.functions[name], blocks, 1, 1, threads, 1, 1, 0, None, places, None)

    def synchronize(self):
        call("cuCtxSynchronize")

    def count(self, rounds=ROUNDS, **shape):
        self.launch("count", self.word.value, rounds, **shape)

    def value(self):
        value = ctypes.c_uint64()
        call("cuMemcpyDtoH_v2", ctypes.byref(value), self.word, ctypes.c_size_t(8))
        return value.value


def small_steps(device, groups, launches):
    """A step of so many groups of launches; the host waits after each group."""

    def step():
        for _ in range(groups):
            for _ in range(launches):
                device.count()
            device.synchronize()

    return step


def request(device, groups, launches):
    return Request(small_steps(device, groups, launches), lambda: device.value() == ROUNDS)


def work(device, launches):
    step = small_steps(device, 1, launches)

    def verify(steps):
        device.clear()
        for _ in range(steps):
            step()
        return f"{device.value():016x}"

    return Work(step, verify, lambda: device.value() == ROUNDS)


def seconds_of(device, rounds, shape):
    """The shortest of three: an offline program may have to wait at the gate in some of them."""
    times = []
    for _ in range(3):
        began = time.monotonic()
        device.count(rounds, **shape)
        device.synchronize()
        times.append(time.monotonic() - began)
    return min(times)


def long_kernel(device):
    """Rounds and shape of a kernel of 10 ms. It is as wide as the GPU, unless one round of that takes too long already, as it
    does on a GPU in software."""
    shape, rounds = {"blocks": 2 * device.multiprocessors, "threads": 1024}, 1
    if seconds_of(device, rounds, shape) > LONG_SECONDS:
        shape = {}
    # The time of the call itself is small beside a kernel of this length.
    while (took := seconds_of(device, rounds, shape)) < LONG_SECONDS / 4:
        rounds *= 4
    return max(1, int(rounds * LONG_SECONDS / took)), shape


def repeat(seconds, step):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        step()


def take_all_memory():
    """Says on the error output how much it got, and how the driver refused more."""
    taken, error = 0, None
    for piece in PIECES_BYTES:
        while True:
            try:
                call("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(piece))
            except RuntimeError as refused:
                error = refused
                break
            taken += piece
    print(f"after {taken >> 30} GiB: {error}", file=sys.stderr)


def do_wrong(device, what):
    if what == "endless":
        device.launch("endless", device.word.value)
    elif what == "greedy":
        take_all_memory()
        repeat(GREEDY_FOR_SECONDS, small_steps(device, 1, 20))
    else:
        device.launch("count", 0x10000, ROUNDS)
    device.synchronize()


def main():
    device, what = Device(), sys.argv[1]
    if what == "online":
        shapes = {"graph": (1, 10), "eager": (2, 10), "decode": (8, 2)}
        Server(requests={name: lambda shape=shape: request(device, *shape) for name, shape in shapes.items()}).serve()
    elif what == "offline":
        launches = {"train": 50, "graph": 20, "bert": 30, "product": 5}
        Server(works={name: lambda count=count: work(device, count) for name, count in launches.items()}).serve()
    elif what in ("busy", "held"):
        step = small_steps(device, 1, 200)
        step()
        print("ready", flush=True)
        # An empty answer: the benchmark ended before it was this program's turn.
        while what == "busy" or sys.stdin.readline():
            repeat(float("inf"), step)
    else:
        rounds, shape = long_kernel(device) if what == "long" else (ROUNDS, {})
        print("ready", flush=True)
        if not sys.stdin.readline():
            # The benchmark ended before it was this program's turn.
            return
        try:
            if what == "long":
                repeat(LONG_FOR_SECONDS, lambda: (device.count(rounds, **shape), device.synchronize()))
            else:
                do_wrong(device, what)
        finally:
            print("over", flush=True)


main()
