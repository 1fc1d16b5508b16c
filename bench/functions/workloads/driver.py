"""k-means through the CUDA driver alone, with PTX and no library: what starting costs, and what a GPU in software can run.

A process that has no GPU (`BENCH_DEVICE=cpu`) computes the same in Python, so that both sides can be compared.
"""

import time

ENTERED = time.time()

import array  # noqa: E402
import ctypes  # noqa: E402
import mmap  # noqa: E402
import os  # noqa: E402
import pathlib  # noqa: E402
import random  # noqa: E402

STARTED = float(os.environ.get("BENCH_STARTED", "0")) or ENTERED
SEED = 20260716
CLUSTERS = 4

# For each point of four dimensions the nearest centre.
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry assign(.param .u64 points, .param .u64 centres, .param .u64 nearest, .param .u32 count, .param .u32 clusters)
{
    .reg .pred %p<4>;
    .reg .b32 %r<9>;
    .reg .b64 %rd<8>;
    .reg .f32 %f<11>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    ld.param.u32 %r5, [count];
    setp.ge.u32 %p1, %r4, %r5;
    @%p1 bra END;
    ld.param.u64 %rd1, [points];
    ld.param.u64 %rd2, [centres];
    ld.param.u64 %rd3, [nearest];
    ld.param.u32 %r6, [clusters];
    mul.wide.u32 %rd4, %r4, 16;
    add.s64 %rd5, %rd1, %rd4;
    ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd5];
    mov.u32 %r7, 0;
    mov.u32 %r8, 0;
    mov.f32 %f5, 0f7F7FFFFF;
LOOP:
    ld.global.v4.f32 {%f6, %f7, %f8, %f9}, [%rd2];
    sub.f32 %f6, %f6, %f1;
    sub.f32 %f7, %f7, %f2;
    sub.f32 %f8, %f8, %f3;
    sub.f32 %f9, %f9, %f4;
    mul.f32 %f10, %f6, %f6;
    fma.rn.f32 %f10, %f7, %f7, %f10;
    fma.rn.f32 %f10, %f8, %f8, %f10;
    fma.rn.f32 %f10, %f9, %f9, %f10;
    setp.lt.f32 %p2, %f10, %f5;
    selp.f32 %f5, %f10, %f5, %p2;
    selp.b32 %r8, %r7, %r8, %p2;
    add.u32 %r7, %r7, 1;
    add.s64 %rd2, %rd2, 16;
    setp.lt.u32 %p3, %r7, %r6;
    @%p3 bra LOOP;
    mul.wide.u32 %rd6, %r4, 4;
    add.s64 %rd7, %rd3, %rd6;
    st.global.u32 [%rd7], %r8;
END:
    ret;
}
\0"""


class Gpu:
    """A context, the kernel, and memory."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.context, self.kernel = ctypes.c_void_p(), ctypes.c_void_p()
        device, module = ctypes.c_int(), ctypes.c_void_p()
        self.check(self.cuda.cuInit(0))
        self.check(self.cuda.cuDeviceGet(ctypes.byref(device), 0))
        self.check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), device))
        self.check(self.cuda.cuCtxSetCurrent(self.context))
        self.check(self.cuda.cuModuleLoadData(ctypes.byref(module), PTX))
        self.check(self.cuda.cuModuleGetFunction(ctypes.byref(self.kernel), module, b"assign"))

    def check(self, code):
        if code:
            raise RuntimeError(f"CUDA error {code}")

    def allocate(self, size):
        place = ctypes.c_uint64()
        self.check(self.cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(size)))
        return place

    def put(self, place, address, size):
        self.check(self.cuda.cuMemcpyHtoD_v2(place, ctypes.c_void_p(address), ctypes.c_size_t(size)))

    def finish(self):
        self.check(self.cuda.cuCtxSynchronize())

    def nearest(self, points, centres, count):
        """Which centre each point is nearest to; both are arrays of floats, four for each."""
        self.check(self.cuda.cuCtxSetCurrent(self.context))
        out = array.array("I", bytes(4 * count))
        places = [self.allocate(4 * len(points)), self.allocate(4 * len(centres)), self.allocate(4 * count)]
        for place, values in zip(places, (points, centres)):
            self.put(place, values.buffer_info()[0], 4 * len(values))
        numbers = [ctypes.c_uint32(count), ctypes.c_uint32(len(centres) // 4)]
        arguments = (ctypes.c_void_p * 5)(*[ctypes.addressof(value) for value in places + numbers])
        self.check(self.cuda.cuLaunchKernel(self.kernel, (count + 127) // 128, 1, 1, 128, 1, 1, 0, None, arguments, None))
        self.check(self.cuda.cuMemcpyDtoH_v2(ctypes.c_void_p(out.buffer_info()[0]), places[2], ctypes.c_size_t(4 * count)))
        for place in places:
            self.check(self.cuda.cuMemFree_v2(place))
        return out


class Cpu:
    """The same in Python."""

    def nearest(self, points, centres, count):
        def distance(point, centre):
            return sum((points[4 * point + n] - centres[4 * centre + n]) ** 2 for n in range(4))

        return [min(range(len(centres) // 4), key=lambda centre: distance(point, centre)) for point in range(count)]

    def finish(self):
        pass


def cluster(device, count, iterations):
    """The mean squared distance of points to their centres after Lloyd's iterations."""
    dice = random.Random(SEED)
    points = array.array("f", (dice.gauss(8 * (n // 4 % CLUSTERS), 1) for n in range(4 * count)))
    centres = array.array("f", points[: 4 * CLUSTERS])
    for _ in range(iterations):
        nearest = device.nearest(points, centres, count)
        sums, counts = [0.0] * len(centres), [0] * CLUSTERS
        for point, centre in enumerate(nearest):
            counts[centre] += 1
            for n in range(4):
                sums[4 * centre + n] += points[4 * point + n]
        centres = array.array("f", (sums[n] / counts[n // 4] if counts[n // 4] else centres[n] for n in range(len(centres))))
    spread = sum((points[4 * p + n] - centres[4 * c + n]) ** 2 for p, c in enumerate(nearest) for n in range(4))
    return {"inertia": round(spread / count, 3)}


def weights_file(megabytes):
    """A file of random bytes, which is made once."""
    folder = pathlib.Path(os.environ.get("BENCH_WEIGHTS", "/tmp/dxpu-functions-weights"))
    file = folder / f"random-{megabytes}.bin"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        draft, dice = file.with_suffix(f".{os.getpid()}"), random.Random(SEED)
        with open(draft, "wb") as out:
            for _ in range(megabytes):
                out.write(dice.randbytes(1 << 20))
        draft.rename(file)
    return file


def load_weights(device, megabytes):
    """Brings them to the GPU."""
    with open(weights_file(megabytes), "rb") as source:
        view = mmap.mmap(source.fileno(), 0, mmap.MAP_PRIVATE)
    first = ctypes.c_char.from_buffer(view)
    place = device.allocate(len(view))
    device.put(place, ctypes.addressof(first), len(view))
    device.finish()
    del first
    view.close()
    return place


state = {"device": None, "count": 0, "load_s": 0.0, "first_s": None, "weights": None}


def handler(event, _context=None):
    entered = time.time()
    on_cpu = os.environ.get("BENCH_DEVICE") == "cpu"
    if state["device"] is None:
        state["device"] = Cpu() if on_cpu else Gpu()
    began = time.time()
    result = cluster(state["device"], event.get("points", 256), event.get("iterations", 3))
    state["device"].finish()
    ended = time.time()
    if state["first_s"] is None:
        # From before the library was loaded, and from the process's start.
        state["first_s"] = [ended - entered, ended - STARTED]
    megabytes = event.get("weights_mb", 0)
    if megabytes and state["weights"] is None and not on_cpu:
        state["weights"] = load_weights(state["device"], megabytes)
        state["load_s"] = time.time() - ended
    state["count"] += 1
    return {
        "workload": os.environ.get("BENCH_WORKLOAD", "driver"),
        "device": "cpu" if on_cpu else "cuda",
        "result": result,
        "started": STARTED,
        "imported": ENTERED,
        "entered": entered,
        "ended": time.time(),
        "first_s": state["first_s"],
        "load_s": state["load_s"],
        "compute_s": ended - began,
        "served_by_this_instance": state["count"],
    }
