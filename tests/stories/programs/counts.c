/* A program whose calls are known to the last one. It prints what it computed, so that whoever stands between it and the driver is
   seen to change nothing.

     counts ROUNDS [marked] [dirty]

   Every round: 4 launches of scale and 1 of spin on a stream, 2 uploads of 4096 bytes from pageable memory, 1 of 65536 from pinned
   memory, 1 download of 4096 bytes that waits, 1 copy within the device, 2 memsets, 1 event recorded and waited for by another stream, 1 event
   wait and 1 stream wait. Then one graph of 3 kernels is captured and launched ROUNDS times, and the context is waited for once.
   `marked` puts the second half of the rounds between cuProfilerStart and cuProfilerStop; `dirty` leaves by _exit. */
#include "cu.h"

#define COUNT 1024
#define BYTES (COUNT * 4)
#define PINNED_BYTES 65536

static CUresult (*cuProfilerStart)(void);
static CUresult (*cuProfilerStop)(void);
static CUresult (*cuGetProcAddress_v2)(const char *, void **, int, uint64_t, int *);

int main(int count, char **words) {
    int rounds = count > 1 ? atoi(words[1]) : 1;
    int is_marked = 0, is_dirty = 0;
    for (int at = 2; at < count; at++) {
        is_marked |= !strcmp(words[at], "marked");
        is_dirty |= !strcmp(words[at], "dirty");
    }
    void *library = open_driver();
    *(void **)&cuProfilerStart = dlsym(library, "cuProfilerStart");
    *(void **)&cuProfilerStop = dlsym(library, "cuProfilerStop");
    *(void **)&cuGetProcAddress_v2 = dlsym(library, "cuGetProcAddress_v2");
    start_device();
    /* Half the programs find their functions this way; both must lead to the same place. */
    void *found = NULL;
    int status = -1;
    MUST(cuGetProcAddress_v2("cuLaunchKernel", &found, 12000, 0, &status));
    HOLDS(status == 0 && found == *(void **)&cuLaunchKernel);

    CUstream stream, other;
    CUevent event;
    MUST(cuStreamCreate(&stream, STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&other, STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, 0));
    CUdeviceptr in, out, large;
    MUST(cuMemAlloc_v2(&in, BYTES));
    MUST(cuMemAlloc_v2(&out, BYTES));
    MUST(cuMemAlloc_v2(&large, PINNED_BYTES));
    uint32_t host[COUNT], *pinned;
    MUST(cuMemAllocHost_v2((void **)&pinned, PINNED_BYTES));
    memset(pinned, 7, PINNED_BYTES);
    uint64_t sum = 0;
    for (int round = 0; round < rounds; round++) {
        if (is_marked && round == rounds / 2) MUST(cuProfilerStart());
        for (int at = 0; at < COUNT; at++) host[at] = round + at;
        MUST(cuMemcpyHtoD_v2(in, host, BYTES));
        MUST(cuMemcpyHtoDAsync_v2(in, host, BYTES, stream));
        MUST(cuMemcpyHtoDAsync_v2(large, pinned, PINNED_BYTES, stream));
        MUST(cuMemsetD32Async(out, round, COUNT, stream));
        MUST(cuMemsetD32Async(large, round, COUNT, stream));
        for (int launch = 0; launch < 4; launch++) MUST(scale(in, out, COUNT, stream));
        MUST(spin(large, 10, round, stream));
        MUST(cuMemcpyDtoDAsync_v2(in, out, BYTES, stream));
        MUST(cuEventRecord(event, stream));
        MUST(cuStreamWaitEvent(other, event, 0));
        MUST(cuEventSynchronize(event));
        MUST(cuMemcpyDtoHAsync_v2(host, out, BYTES, stream));
        MUST(cuStreamSynchronize(stream));
        for (int at = 0; at < COUNT; at++) {
            HOLDS(host[at] == 3 * (uint32_t)(round + at) + 1);
            sum += host[at];
        }
    }
    if (is_marked) MUST(cuProfilerStop());
    CUgraph graph;
    CUgraphExec exec;
    MUST(cuStreamBeginCapture_v2(stream, CAPTURE_THREAD_LOCAL));
    for (int launch = 0; launch < 3; launch++) MUST(scale(in, out, COUNT, stream));
    MUST(cuMemsetD32Async(large, 1, COUNT, stream));
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int round = 0; round < rounds; round++) MUST(cuGraphLaunch(exec, stream));
    MUST(cuCtxSynchronize());
    printf("%llu\n", (unsigned long long)sum);
    fflush(stdout);
    if (is_dirty) _exit(0);
    return 0;
}
