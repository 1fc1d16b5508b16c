"""Work of a few instructions through the driver's own functions, without a framework: for tests of this benchmark on GPUs in
software, and for programs that are killed or do wrong.

    plain.py online | offline      as the networks, in small
    plain.py busy                  launches kernels until it is ended
    plain.py illegal               waits for a line on standard input, then writes where no memory is
    plain.py endless               the same, then launches a kernel that never ends
    plain.py greedy                the same, then takes memory until it gets no more
"""

import ctypes
import sys

from serve import Server

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
# Small beside any GPU, and large enough that a GPU is full after some hundred calls.
PIECE_BYTES = 64 << 20

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
        call("cuMemsetD8_v2", self.word, ctypes.c_ubyte(0), ctypes.c_size_t(64))
        self.functions = {}
        for name in ("count", "endless"):
            function = ctypes.c_void_p()
            call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
            self.functions[name] = function

    def launch(self, name, *values):
        held = [ctypes.c_uint64(value) for value in values]
        places = (ctypes.c_void_p * len(held))(*(ctypes.addressof(value) for value in held))
        call("cuLaunchKernel", self.functions[name], 1, 1, 1, 1, 1, 1, 0, None, places, None)

    def synchronize(self):
        call("cuCtxSynchronize")

    def value(self):
        value = ctypes.c_uint64()
        call("cuMemcpyDtoH_v2", ctypes.byref(value), self.word, ctypes.c_size_t(8))
        return value.value


def main():
    device = Device()

    def steps(count):
        def step():
            for _ in range(count):
                device.launch("count", device.word.value, ROUNDS)
            device.synchronize()

        step()
        return step

    def check():
        return device.value() == ROUNDS

    what = sys.argv[1]
    if what == "online":
        Server(request=steps(10), check=check).serve()
    elif what == "offline":
        Server(works={"train": steps(50), "product": steps(5), "graph": steps(20)}, check=check).serve()
    elif what == "busy":
        step = steps(200)
        print("ready", flush=True)
        while True:
            step()
    else:
        print("ready", flush=True)
        sys.stdin.readline()
        if what == "endless":
            device.launch("endless", device.word.value)
        elif what == "greedy":
            while True:
                call("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(PIECE_BYTES))
        else:
            device.launch("count", 0x10000, ROUNDS)
        try:
            device.synchronize()
        finally:
            print("over", flush=True)


main()
