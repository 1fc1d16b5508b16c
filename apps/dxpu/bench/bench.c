/* What CUDA calls cost the program that makes them. An ordinary CUDA driver program: it loads libcuda.so.1 and prints
 * `name value` lines. Instructions are counted by a second process that steps the calling thread one instruction at a
 * time, so the count needs no performance counters and is the same on every run. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef int CUresult;
typedef void *Handle;
typedef unsigned long long CUdeviceptr;

static CUresult (*cuInit)(unsigned);
static CUresult (*cuDevicePrimaryCtxRetain)(Handle *, int);
static CUresult (*cuDevicePrimaryCtxGetState)(int, unsigned *, int *);
static CUresult (*cuCtxSetCurrent)(Handle);
static CUresult (*cuCtxGetDevice)(int *);
static CUresult (*cuCtxSynchronize)(void);
static CUresult (*cuModuleLoadData)(Handle *, const void *);
static CUresult (*cuModuleGetFunction)(Handle *, Handle, const char *);
static CUresult (*cuFuncGetAttribute)(int *, int, Handle);
static CUresult (*cuMemAlloc)(CUdeviceptr *, size_t);
static CUresult (*cuMemAllocAsync)(CUdeviceptr *, size_t, Handle);
static CUresult (*cuMemFreeAsync)(CUdeviceptr, Handle);
static CUresult (*cuMemHostAlloc)(void **, size_t, unsigned);
static CUresult (*cuMemcpyHtoD)(CUdeviceptr, const void *, size_t);
static CUresult (*cuMemcpyDtoH)(void *, CUdeviceptr, size_t);
static CUresult (*cuMemcpyHtoDAsync)(CUdeviceptr, const void *, size_t, Handle);
static CUresult (*cuMemcpyDtoHAsync)(void *, CUdeviceptr, size_t, Handle);
static CUresult (*cuStreamCreate)(Handle *, unsigned);
static CUresult (*cuStreamSynchronize)(Handle);
static CUresult (*cuLaunchKernel)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle,
                                  void **, void **);

static const char PTX[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry eight(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 d, .param .u32 e, .param .f32 f,"
    " .param .f64 g, .param .u64 h)\n{\n ret;\n}\n";

static void must(const char *what, CUresult code)
{
    if (code) {
        fprintf(stderr, "%s failed with CUDA error %d\n", what, code);
        exit(1);
    }
}

#define MUST(call) must(#call, call)

static void load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    struct {
        void **place;
        const char *name;
    } symbols[] = {
        {(void **)&cuInit, "cuInit"},
        {(void **)&cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain"},
        {(void **)&cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState"},
        {(void **)&cuCtxSetCurrent, "cuCtxSetCurrent"},
        {(void **)&cuCtxGetDevice, "cuCtxGetDevice"},
        {(void **)&cuCtxSynchronize, "cuCtxSynchronize"},
        {(void **)&cuModuleLoadData, "cuModuleLoadData"},
        {(void **)&cuModuleGetFunction, "cuModuleGetFunction"},
        {(void **)&cuFuncGetAttribute, "cuFuncGetAttribute"},
        {(void **)&cuMemAlloc, "cuMemAlloc_v2"},
        {(void **)&cuMemAllocAsync, "cuMemAllocAsync"},
        {(void **)&cuMemFreeAsync, "cuMemFreeAsync"},
        {(void **)&cuMemHostAlloc, "cuMemHostAlloc"},
        {(void **)&cuMemcpyHtoD, "cuMemcpyHtoD_v2"},
        {(void **)&cuMemcpyDtoH, "cuMemcpyDtoH_v2"},
        {(void **)&cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2"},
        {(void **)&cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2"},
        {(void **)&cuStreamCreate, "cuStreamCreate"},
        {(void **)&cuStreamSynchronize, "cuStreamSynchronize"},
        {(void **)&cuLaunchKernel, "cuLaunchKernel"},
    };
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        *symbols[i].place = dlsym(library, symbols[i].name);
        if (!*symbols[i].place) {
            fprintf(stderr, "libcuda.so.1 has no %s\n", symbols[i].name);
            exit(1);
        }
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, count, sizeof *values, ascending);
    return values[count / 2];
}

/* The calls under measurement. */
static Handle function, stream;
static CUdeviceptr memory;

static void query_state(void)
{
    unsigned flags;
    int active;
    MUST(cuDevicePrimaryCtxGetState(0, &flags, &active));
}

static void query_device(void)
{
    int device;
    MUST(cuCtxGetDevice(&device));
}

static void query_attribute(void)
{
    int value;
    MUST(cuFuncGetAttribute(&value, 0, function));
}

static void launch(void)
{
    static unsigned long long a, b, c, h;
    static unsigned d, e;
    static float f;
    static double g;
    void *parameters[] = {&a, &b, &c, &d, &e, &f, &g, &h};
    MUST(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

/* A program has many blocks at a time and frees them in another order: each call frees one and allocates another, of sizes
 * from a kilobyte to a megabyte. */
enum { BLOCKS = 512 };
static CUdeviceptr blocks[BLOCKS];

static void allocate(void)
{
    static unsigned state = 1;
    state = state * 1664525 + 1013904223;
    CUdeviceptr *block = &blocks[state >> 23];
    size_t bytes = (size_t)1000 << (state >> 8 & 7) << (state >> 11 & 3);
    if (*block)
        MUST(cuMemFreeAsync(*block, stream));
    MUST(cuMemAllocAsync(block, bytes, stream));
}

/* Counting instructions. The stepping process is a fork from before cuInit: it knows where the two marks are. */
enum { STEPPED_CALLS = 64 };
static int go[2], answer[2];

__attribute__((noinline)) static void mark_begin(void) { __asm__ volatile("nop"); }
__attribute__((noinline)) static void mark_end(void) { __asm__ volatile("nop; nop"); }

static void step(pid_t target)
{
    char request;
    while (read(go[0], &request, 1) == 1) {
        long count = -1, counting = 0;
        int status;
        if (ptrace(PTRACE_ATTACH, target, 0, 0) == 0) {
            waitpid(target, &status, __WALL);
            if (write(answer[1], "a", 1) != 1)
                _exit(1);
            for (;;) {
                int deliver = 0;
                if (ptrace(PTRACE_SINGLESTEP, target, 0, deliver) != 0 || waitpid(target, &status, __WALL) < 0)
                    break;
                if (!WIFSTOPPED(status))
                    break;
                size_t at = ptrace(PTRACE_PEEKUSER, target, offsetof(struct user_regs_struct, rip), 0);
                if (at == (size_t)mark_begin) {
                    count = 0;
                    counting = 1;
                } else if (at == (size_t)mark_end) {
                    break;
                } else if (counting) {
                    count++;
                }
            }
            ptrace(PTRACE_DETACH, target, 0, 0);
        } else if (write(answer[1], "x", 1) != 1) {
            _exit(1);
        }
        if (write(answer[1], &count, sizeof count) != sizeof count)
            _exit(1);
    }
    _exit(0);
}

static void start_stepper(void)
{
    pid_t self = getpid();
    if (pipe(go) || pipe(answer))
        exit(1);
    pid_t stepper = fork();
    if (stepper == 0) {
        close(go[1]);
        step(self);
    }
    prctl(PR_SET_PTRACER, stepper, 0, 0, 0);
    close(go[0]);
}

/* Instructions of the calling thread per call of `call`, or -1 where stepping is forbidden. */
static double instructions(void (*call)(void))
{
    char attached;
    long count;
    for (int i = 0; i < 200; i++)
        call();
    if (write(go[1], "g", 1) != 1 || read(answer[0], &attached, 1) != 1)
        return -1;
    mark_begin();
    for (int i = 0; i < STEPPED_CALLS; i++)
        call();
    mark_end();
    if (read(answer[0], &count, sizeof count) != sizeof count)
        return -1;
    return count < 0 ? -1 : (double)count / STEPPED_CALLS;
}

/* Nanoseconds per call, median over batches. */
static double nanoseconds(void (*call)(void), int batch)
{
    enum { BATCHES = 101 };
    static double times[BATCHES];
    for (int b = 0; b < BATCHES; b++) {
        double start = now();
        for (int i = 0; i < batch; i++)
            call();
        times[b] = (now() - start) / batch * 1e9;
        /* The queue is emptied between batches: a launch is measured, not a full queue. */
        MUST(cuStreamSynchronize(stream));
    }
    return median(times, BATCHES);
}

static double worst(double a, double b, double c)
{
    double m = a > b ? a : b;
    return m > c ? m : c;
}

static void measure_calls(void)
{
    double state = instructions(query_state), device = instructions(query_device);
    double attribute = instructions(query_attribute), launched = instructions(launch);
    printf("primary_state_instructions %.1f\nget_device_instructions %.1f\nfunction_attribute_instructions %.1f\n", state, device,
           attribute);
    printf("query_instructions %.1f\n", worst(state, device, attribute));
    printf("launch_instructions %.1f\n", launched);
    for (int i = 0; i < 16 * BLOCKS; i++)
        allocate();
    printf("allocation_instructions %.1f\n", instructions(allocate));
    printf("query_ns_p50 %.1f\n",
           worst(nanoseconds(query_state, 1000), nanoseconds(query_device, 1000), nanoseconds(query_attribute, 1000)));
    printf("launch_ns_p50 %.1f\n", nanoseconds(launch, 200));
    printf("allocation_ns_p50 %.1f\n", nanoseconds(allocate, 1000));
}

static void measure_round_trips(int rounds)
{
    double *times = calloc(rounds, sizeof *times);
    for (int i = 0; i < rounds; i++) {
        double start = now();
        MUST(cuStreamSynchronize(stream));
        times[i] = (now() - start) * 1e6;
    }
    printf("sync_rtt_us_p50 %.2f\n", median(times, rounds));
    free(times);
}

static void measure_bytes(size_t bytes, int rounds)
{
    double to[16], from[16];
    void *host;
    MUST(cuMemHostAlloc(&host, bytes, 0));
    memset(host, 0x5a, bytes);
    MUST(cuMemcpyHtoD(memory, host, bytes));
    for (int i = 0; i < rounds; i++) {
        double start = now();
        MUST(cuMemcpyHtoDAsync(memory, host, bytes, stream));
        MUST(cuStreamSynchronize(stream));
        to[i] = bytes / (now() - start) / 1e9;
        start = now();
        MUST(cuMemcpyDtoHAsync(host, memory, bytes, stream));
        MUST(cuStreamSynchronize(stream));
        from[i] = bytes / (now() - start) / 1e9;
    }
    printf("h2d_gbps %.3f\nd2h_gbps %.3f\n", median(to, rounds), median(from, rounds));
}

/* bench calls | bench transport ROUNDS MEGABYTES REPETITIONS */
int main(int argc, char **argv)
{
    int calls = argc > 1 && strcmp(argv[1], "calls") == 0;
    Handle context, module;
    if (calls)
        start_stepper();
    load();
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, PTX));
    MUST(cuModuleGetFunction(&function, module, "eight"));
    MUST(cuStreamCreate(&stream, 1));
    if (calls) {
        measure_calls();
        return 0;
    }
    size_t bytes = (argc > 3 ? strtoul(argv[3], NULL, 10) : 256) << 20;
    MUST(cuMemAlloc(&memory, bytes));
    measure_round_trips(argc > 2 ? atoi(argv[2]) : 2000);
    measure_bytes(bytes, argc > 4 ? atoi(argv[4]) : 5);
    MUST(cuCtxSynchronize());
    return 0;
}
