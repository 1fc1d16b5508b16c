"""The driver library through ctypes: words that processes share, streams that wait for them, kernels that say when they ran."""

import ctypes
import mmap
import os
import time

PTX = b"""
.version 7.0
.target sm_70
.address_size 64

// One thread writes the device's clock to a word of the host.
.visible .entry stamp(.param .u64 p_word)
{
    .reg .u64 %word, %now;
    ld.param.u64 %word, [p_word];
    mov.u64 %now, %globaltimer;
    st.volatile.global.u64 [%word], %now;
    membar.sys;
    ret;
}

// One thread writes the device's clock to the next two words of a ring.
.visible .entry tick(.param .u64 p_ring, .param .u64 p_counter, .param .u64 p_mask)
{
    .reg .u64 %ring, %counter, %mask, %at, %now;
    ld.param.u64 %ring, [p_ring];
    ld.param.u64 %counter, [p_counter];
    ld.param.u64 %mask, [p_mask];
    atom.global.add.u64 %at, [%counter], 1;
    and.b64 %at, %at, %mask;
    shl.b64 %at, %at, 4;
    add.u64 %at, %at, %ring;
    mov.u64 %now, %globaltimer;
    st.global.u64 [%at], %now;
    st.global.u64 [%at+8], %now;
    ret;
}

// Every thread spins for so many nanoseconds; ring[2 at] and ring[2 at + 1] are the first start and the last end.
.visible .entry spin(.param .u64 p_ring, .param .u64 p_at, .param .u64 p_ns)
{
    .reg .u64 %ring, %at, %ns, %start, %now, %past;
    .reg .u32 %thread;
    .reg .pred %p, %first;
    ld.param.u64 %ring, [p_ring];
    ld.param.u64 %at, [p_at];
    ld.param.u64 %ns, [p_ns];
    shl.b64 %at, %at, 4;
    add.u64 %at, %at, %ring;
    mov.u32 %thread, %tid.x;
    setp.eq.u32 %first, %thread, 0;
    mov.u64 %start, %globaltimer;
    @%first red.global.min.u64 [%at], %start;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %past, %now, %start;
    setp.lt.u64 %p, %past, %ns;
    @%p bra again;
    @%first red.global.max.u64 [%at+8], %now;
    ret;
}

// Reads and writes a buffer once: 16 bytes for each thread and round.
.visible .entry sweep(.param .u64 p_ring, .param .u64 p_at, .param .u64 p_buffer, .param .u64 p_bytes)
{
    .reg .u64 %ring, %at, %buffer, %bytes, %now, %here, %step, %wide;
    .reg .u32 %thread, %block, %threads, %blocks, %id, %all, %a, %b, %c, %d;
    .reg .pred %p, %first;
    ld.param.u64 %ring, [p_ring];
    ld.param.u64 %at, [p_at];
    ld.param.u64 %buffer, [p_buffer];
    ld.param.u64 %bytes, [p_bytes];
    shl.b64 %at, %at, 4;
    add.u64 %at, %at, %ring;
    mov.u32 %thread, %tid.x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %blocks, %nctaid.x;
    setp.eq.u32 %first, %thread, 0;
    mov.u64 %now, %globaltimer;
    @%first red.global.min.u64 [%at], %now;
    mad.lo.u32 %id, %block, %threads, %thread;
    mul.lo.u32 %all, %blocks, %threads;
    mul.wide.u32 %here, %id, 16;
    mul.wide.u32 %step, %all, 16;
again:
    setp.ge.u64 %p, %here, %bytes;
    @%p bra over;
    add.u64 %wide, %buffer, %here;
    ld.global.v4.u32 {%a, %b, %c, %d}, [%wide];
    add.u32 %a, %a, 1;
    st.global.v4.u32 [%wide], {%a, %b, %c, %d};
    add.u64 %here, %here, %step;
    bra again;
over:
    mov.u64 %now, %globaltimer;
    @%first red.global.max.u64 [%at+8], %now;
    ret;
}
"""

_cuda = ctypes.CDLL("libcuda.so.1")
WAIT_EQ = 1


def check(name, code):
    if code != 0:
        text = ctypes.c_char_p()
        _cuda.cuGetErrorName(code, ctypes.byref(text))
        raise RuntimeError(f"{name}: {text.value.decode() if text.value else code}")


def call(name, *arguments):
    check(name, getattr(_cuda, name)(*arguments))


def u64(value):
    return ctypes.c_uint64(value)


class SharedWords:
    """A page of words in a file that several processes map, and that this process's GPU sees."""

    COUNT = 512

    def __init__(self, path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, 8 * self.COUNT)
        self.map = mmap.mmap(descriptor, 8 * self.COUNT)
        os.close(descriptor)
        self.words = (ctypes.c_uint64 * self.COUNT).from_buffer(self.map)
        self.address = ctypes.addressof(self.words)
        self.on_device = None

    def register(self):
        """Makes the words visible to the GPU. The context is this thread's."""
        call("cuMemHostRegister_v2", ctypes.c_void_p(self.address), ctypes.c_size_t(8 * self.COUNT), 2)
        pointer = ctypes.c_uint64()
        call("cuMemHostGetDevicePointer_v2", ctypes.byref(pointer), ctypes.c_void_p(self.address), 0)
        self.on_device = pointer.value

    def pointer(self, at):
        return self.on_device + 8 * at


class Kernels:
    """The kernels above in the current context."""

    def __init__(self):
        module = ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(module), PTX)
        self.functions = {}
        for name in ("stamp", "tick", "spin", "sweep"):
            function = ctypes.c_void_p()
            call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
            self.functions[name] = function

    def launcher(self, name, blocks, threads, *values):
        """A function that launches on a stream, and the values, which may be changed between launches."""
        held = [u64(value) for value in values]
        pointers = (ctypes.c_void_p * len(held))(*[ctypes.addressof(value) for value in held])
        function, launch = self.functions[name], _cuda.cuLaunchKernel

        def run(stream):
            check(name, launch(function, blocks, 1, 1, threads, 1, 1, 0, ctypes.c_void_p(stream), pointers, None))

        # The array has addresses alone, which do not keep the values alive.
        run.held = held
        return run, held


def wait_until_zero(stream, pointer):
    call("cuStreamWaitValue64_v2", ctypes.c_void_p(stream), u64(pointer), u64(0), WAIT_EQ)


def write_value(stream, pointer, value):
    call("cuStreamWriteValue64_v2", ctypes.c_void_p(stream), u64(pointer), u64(value), 0)


def settle(what):
    """Waits for the device, and names what was launched last if that failed."""
    check(what, _cuda.cuCtxSynchronize())


def now():
    return time.perf_counter_ns()


def spin_until(when):
    while now() < when:
        pass
