/* The driver as these programs see it: libcuda.so.1 opened by its plain name, its functions by theirs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef int CUresult, CUdevice;
typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream, *CUevent, *CUgraph, *CUgraphExec;
typedef void *CUmemoryPool;
typedef uint64_t CUdeviceptr;
typedef void (*CUhostFn)(void *);

enum { NOT_INITIALIZED = 3, UNAVAILABLE = 46, NOT_READY = 600, ILLEGAL_ADDRESS = 700 };
/* CUmemPoolProps: pinned memory of a device. */
struct pool_props {
    int allocation_type, handle_types, location_type, location_id;
    void *security;
    size_t max_size;
    unsigned char reserved[56];
};
enum { OUT_OF_MEMORY = 2 };
enum { STREAM_NON_BLOCKING = 1, CAPTURE_THREAD_LOCAL = 1 };
#define PER_THREAD ((CUstream)2)

#define FUNCTIONS(X) \
    X(cuInit, (unsigned)) \
    X(cuDeviceGetCount, (int *)) \
    X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) \
    X(cuDevicePrimaryCtxRelease_v2, (CUdevice)) \
    X(cuDevicePrimaryCtxReset_v2, (CUdevice)) \
    X(cuDevicePrimaryCtxGetState, (CUdevice, unsigned *, int *)) \
    X(cuCtxSetCurrent, (CUcontext)) \
    X(cuCtxGetDevice, (CUdevice *)) \
    X(cuCtxSynchronize, (void)) \
    X(cuMemGetInfo_v2, (size_t *, size_t *)) \
    X(cuMemAlloc_v2, (CUdeviceptr *, size_t)) \
    X(cuMemFree_v2, (CUdeviceptr)) \
    X(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream)) \
    X(cuMemFreeAsync, (CUdeviceptr, CUstream)) \
    X(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream)) \
    X(cuDeviceGetDefaultMemPool, (CUmemoryPool *, CUdevice)) \
    X(cuMemPoolCreate, (CUmemoryPool *, const struct pool_props *)) \
    X(cuMemPoolDestroy, (CUmemoryPool)) \
    X(cuMemPoolTrimTo, (CUmemoryPool, size_t)) \
    X(cuMemPoolGetAttribute, (CUmemoryPool, int, void *)) \
    X(cuMemPoolSetAttribute, (CUmemoryPool, int, void *)) \
    X(cuMemGetAddressRange_v2, (CUdeviceptr *, size_t *, CUdeviceptr)) \
    X(cuPointerGetAttribute, (void *, int, CUdeviceptr)) \
    X(cuMemAllocHost_v2, (void **, size_t)) \
    X(cuMemFreeHost, (void *)) \
    X(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t)) \
    X(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t)) \
    X(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream)) \
    X(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream)) \
    X(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
    X(cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t)) \
    X(cuMemsetD32Async, (CUdeviceptr, unsigned, size_t, CUstream)) \
    X(cuModuleLoadData, (CUmodule *, const void *)) \
    X(cuModuleUnload, (CUmodule)) \
    X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *)) \
    X(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
    X(cuLaunchKernel_ptsz, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
    X(cuStreamCreate, (CUstream *, unsigned)) \
    X(cuStreamDestroy_v2, (CUstream)) \
    X(cuStreamSynchronize, (CUstream)) \
    X(cuStreamQuery, (CUstream)) \
    X(cuStreamWaitEvent, (CUstream, CUevent, unsigned)) \
    X(cuStreamBeginCapture_v2, (CUstream, int)) \
    X(cuStreamEndCapture, (CUstream, CUgraph *)) \
    X(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long)) \
    X(cuGraphLaunch, (CUgraphExec, CUstream)) \
    X(cuGraphExecDestroy, (CUgraphExec)) \
    X(cuGraphDestroy, (CUgraph)) \
    X(cuLaunchHostFunc, (CUstream, CUhostFn, void *)) \
    X(cuEventCreate, (CUevent *, unsigned)) \
    X(cuEventDestroy_v2, (CUevent)) \
    X(cuEventRecord, (CUevent, CUstream)) \
    X(cuEventQuery, (CUevent)) \
    X(cuEventSynchronize, (CUevent))

#define DECLARE(name, arguments) static __attribute__((unused)) CUresult (*name) arguments;
FUNCTIONS(DECLARE)

static __attribute__((unused)) void *open_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(90);
    }
#define FIND(name, arguments) \
    if (!(*(void **)&name = dlsym(library, #name))) { \
        fprintf(stderr, "no %s\n", #name); \
        exit(90); \
    }
    FUNCTIONS(FIND)
    return library;
}

/* Ends the program at once, from any thread, with the place and what was found there. */
#define FAIL(...) \
    do { \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
        fprintf(stderr, __VA_ARGS__); \
        fputc('\n', stderr); \
        fflush(NULL); \
        _exit(91); \
    } while (0)
#define MUST(call) \
    do { \
        CUresult code_ = (call); \
        if (code_) FAIL("%s returned %d", #call, code_); \
    } while (0)
#define GIVES(code, call) \
    do { \
        CUresult code_ = (call); \
        if (code_ != (code)) FAIL("%s returned %d, not %d", #call, code_, code); \
    } while (0)
#define HOLDS(condition) \
    do { \
        if (!(condition)) FAIL("this does not hold: %s", #condition); \
    } while (0)

static __attribute__((unused)) double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec * 1e-9;
}

static const char KERNELS[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".extern .func (.param .b32 status) vprintf (.param .b64 format, .param .b64 arguments);\n"
    ".global .align 1 .b8 said[20] = {116,104,101,32,107,101,114,110,101,108,32,115,97,121,115,32,37,100,10,0};\n"
    /* scale(in, out, count): out[i] = 3 * in[i] + 1 */
    ".visible .entry scale(.param .u64 in, .param .u64 out, .param .u32 count)\n{\n"
    " .reg .pred %p; .reg .b32 %r<8>; .reg .b64 %rd<6>;\n"
    " ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out]; ld.param.u32 %r1, [count];\n"
    " mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r2, %r3, %r4;\n"
    " setp.ge.u32 %p, %r5, %r1;\n @%p bra DONE;\n"
    " mul.wide.u32 %rd3, %r5, 4; add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;\n"
    " ld.global.u32 %r6, [%rd4]; mad.lo.u32 %r7, %r6, 3, 1; st.global.u32 [%rd5], %r7;\n"
    "DONE:\n ret;\n}\n"
    /* spin(out, turns, value): counts, then writes value: a kernel as long as one likes */
    ".visible .entry spin(.param .u64 out, .param .u32 turns, .param .u32 value)\n{\n"
    " .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %rd1;\n"
    " ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [turns]; ld.param.u32 %r2, [value];\n"
    "AGAIN:\n sub.u32 %r1, %r1, 1; setp.ne.u32 %p, %r1, 0;\n @%p bra AGAIN;\n"
    " st.global.u32 [%rd1], %r2;\n ret;\n}\n"
    /* await(word, turns): looks at a word until it is 1, then makes it 2; 3 when that takes too many turns */
    ".visible .entry await(.param .u64 word, .param .u32 turns)\n{\n"
    " .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %rd1;\n"
    " ld.param.u64 %rd1, [word]; ld.param.u32 %r1, [turns]; mov.u32 %r3, 3;\n"
    "AGAIN:\n ld.volatile.global.u32 %r2, [%rd1]; setp.eq.u32 %p, %r2, 1;\n @%p bra SEEN;\n"
    " sub.u32 %r1, %r1, 1; setp.ne.u32 %p, %r1, 0;\n @%p bra AGAIN;\n bra.uni OVER;\n"
    "SEEN:\n mov.u32 %r3, 2;\n"
    "OVER:\n st.volatile.global.u32 [%rd1], %r3;\n ret;\n}\n"
    ".visible .entry wild()\n{\n .reg .b64 %rd1; .reg .b32 %r1;\n mov.u64 %rd1, 4096; mov.u32 %r1, 1;\n"
    " st.global.u32 [%rd1], %r1;\n ret;\n}\n"
    ".visible .entry say(.param .u32 number)\n{\n .local .align 8 .b8 place[8];\n .reg .b32 %r<3>; .reg .b64 %rd<4>;\n"
    " ld.param.u32 %r1, [number];\n mov.u64 %rd1, place; cvta.local.u64 %rd2, %rd1; st.local.u32 [%rd1], %r1;\n"
    " mov.u64 %rd3, said; cvta.global.u64 %rd3, %rd3;\n"
    " {\n .param .b64 p0; st.param.b64 [p0], %rd3; .param .b64 p1; st.param.b64 [p1], %rd2;\n"
    " .param .b32 back; call.uni (back), vprintf, (p0, p1); ld.param.b32 %r2, [back];\n }\n ret;\n}\n";

static CUcontext context;
static CUmodule module;
static CUfunction scale_fn, spin_fn, await_fn, wild_fn, say_fn;

static __attribute__((unused)) void start_device(void) {
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, KERNELS));
    MUST(cuModuleGetFunction(&scale_fn, module, "scale"));
    MUST(cuModuleGetFunction(&spin_fn, module, "spin"));
    MUST(cuModuleGetFunction(&await_fn, module, "await"));
    MUST(cuModuleGetFunction(&wild_fn, module, "wild"));
    MUST(cuModuleGetFunction(&say_fn, module, "say"));
}

static __attribute__((unused)) CUresult scale(CUdeviceptr in, CUdeviceptr out, unsigned count, CUstream stream) {
    void *arguments[] = {&in, &out, &count};
    return cuLaunchKernel(scale_fn, (count + 255) / 256, 1, 1, 256, 1, 1, 0, stream, arguments, NULL);
}

static __attribute__((unused)) CUresult spin(CUdeviceptr out, unsigned turns, unsigned value, CUstream stream) {
    void *arguments[] = {&out, &turns, &value};
    return cuLaunchKernel(spin_fn, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL);
}

/* Turns of spin() that take about this long on this driver, measured once. */
static __attribute__((unused)) unsigned turns_for(double seconds) {
    static double per_turn;
    if (per_turn == 0) {
        CUdeviceptr place;
        MUST(cuMemAlloc_v2(&place, 4));
        MUST(spin(place, 1000, 0, NULL));
        MUST(cuCtxSynchronize());
        double from = now();
        MUST(spin(place, 300000, 0, NULL));
        MUST(cuCtxSynchronize());
        per_turn = (now() - from) / 300000;
        MUST(cuMemFree_v2(place));
    }
    double turns = seconds / per_turn;
    return turns > 4e9 ? 4000000000u : (unsigned)turns + 1;
}

static __attribute__((unused)) pthread_t start_thread(void *(*run)(void *), void *argument) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, argument)) FAIL("no thread");
    return thread;
}
