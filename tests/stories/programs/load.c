/* load THREADS ROUNDS: honest work in every thread, every result checked.
 *
 * Each thread has streams, buffers, events and now and then a module of its own; copies are small and large, from pinned
 * and from pageable memory. With 0 rounds it works until a call fails, which must be because the worker is lost: then
 * every later call must fail the same way, and the program ends by itself with code 7. It prints "working" when every
 * thread has done a round, and at the end "all right" or "lost". With 0 threads it prints from kernels until it is lost. */
#include "cu.h"

static int threads, rounds;
static atomic_int warm, lost;

#define OR_LOST(call) \
    do { \
        CUresult code_ = (call); \
        if (code_ == UNAVAILABLE && rounds == 0) { \
            lost = 1; \
            goto end; \
        } \
        if (code_) FAIL("%s returned %d", #call, code_); \
    } while (0)

static void add_one(void *counter) { ++*(volatile unsigned *)counter; }

static const size_t SIZES[] = {100, 4096, 70000, 400000, 2000000};
enum { SIZE_MAX_BYTES = 2000000 };

static void check_all_calls_fail(CUdeviceptr device, void *host, CUstream stream, CUevent event) {
    CUdeviceptr more;
    size_t free_bytes, all;
    double from = now();
    GIVES(UNAVAILABLE, cuCtxSynchronize());
    GIVES(UNAVAILABLE, cuMemAlloc_v2(&more, 64));
    GIVES(UNAVAILABLE, cuMemGetInfo_v2(&free_bytes, &all));
    GIVES(UNAVAILABLE, cuMemcpyHtoD_v2(device, host, 64));
    GIVES(UNAVAILABLE, cuMemcpyDtoH_v2(host, device, SIZE_MAX_BYTES));
    GIVES(UNAVAILABLE, scale(device, device, 16, stream));
    GIVES(UNAVAILABLE, cuEventRecord(event, stream));
    GIVES(UNAVAILABLE, cuStreamSynchronize(stream));
    GIVES(UNAVAILABLE, cuEventSynchronize(event));
    /* What needs no GPU answers on: PyTorch asks in destructors, and ends the process at an error. */
    CUdevice number;
    unsigned flags;
    int active;
    MUST(cuCtxGetDevice(&number));
    MUST(cuDevicePrimaryCtxGetState(number, &flags, &active));
    HOLDS(active);
    if (now() - from > 1) FAIL("calls after the loss took %.1f s", now() - from);
}

static void *work(void *argument) {
    uint64_t seed = (uintptr_t)argument * 0x9e3779b97f4a7c15u + 1;
    CUstream first = NULL, second = NULL;
    CUevent ready = NULL, done = NULL;
    CUdeviceptr in = 0, out = 0;
    unsigned *pinned_in, *pinned_out;
    unsigned *paged_in = malloc(SIZE_MAX_BYTES), *paged_out = malloc(SIZE_MAX_BYTES);
    unsigned calls = 0;
    memset(paged_in, 0, SIZE_MAX_BYTES);
    OR_LOST(cuCtxSetCurrent(context));
    OR_LOST(cuStreamCreate(&first, STREAM_NON_BLOCKING));
    OR_LOST(cuStreamCreate(&second, STREAM_NON_BLOCKING));
    OR_LOST(cuEventCreate(&ready, 2));
    OR_LOST(cuEventCreate(&done, 0));
    OR_LOST(cuMemAlloc_v2(&in, SIZE_MAX_BYTES));
    OR_LOST(cuMemAlloc_v2(&out, SIZE_MAX_BYTES));
    OR_LOST(cuMemAllocHost_v2((void **)&pinned_in, SIZE_MAX_BYTES));
    OR_LOST(cuMemAllocHost_v2((void **)&pinned_out, SIZE_MAX_BYTES));
    for (int round = 0; rounds == 0 || round < rounds; round++) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        size_t bytes = SIZES[seed % 5];
        unsigned count = bytes / 4, salt = seed >> 32;
        int is_pinned = seed >> 20 & 1, crosses = seed >> 21 & 1;
        unsigned *from = is_pinned ? pinned_in : paged_in, *to = is_pinned ? pinned_out : paged_out;
        for (unsigned i = 0; i < count; i++) from[i] = salt + i * 7;
        memset(to, 0, bytes);
        OR_LOST(cuMemcpyHtoDAsync_v2(in, from, bytes, first));
        if (!is_pinned) memset(from, 0x55, bytes); /* pageable bytes are out when the call returns */
        OR_LOST(scale(in, out, count, first));
        CUstream last = first;
        if (crosses) {
            OR_LOST(cuEventRecord(ready, first));
            OR_LOST(cuStreamWaitEvent(second, ready, 0));
            last = second;
        }
        OR_LOST(cuMemcpyDtoHAsync_v2(to, out, bytes, last));
        OR_LOST(cuLaunchHostFunc(last, add_one, &calls));
        OR_LOST(cuEventRecord(done, last));
        switch (seed >> 24 & 3) {
        case 0: OR_LOST(cuStreamSynchronize(last)); break;
        case 1: OR_LOST(cuEventSynchronize(done)); break;
        case 2: OR_LOST(cuCtxSynchronize()); break;
        default: {
            CUresult code;
            while ((code = cuEventQuery(done)) == NOT_READY) usleep(200);
            OR_LOST(code);
        }
        }
        /* A worker that is killed may leave a copy undone, but then the wait for it fails. */
        for (unsigned i = 0; i < count; i++)
            if (to[i] != (salt + i * 7) * 3 + 1) FAIL("round %d: [%u of %u] is %u", round, i, count, to[i]);
        if (calls != (unsigned)round + 1) FAIL("round %d: %u host functions ran", round, calls);
        if (round % 4 == 1) {
            CUdeviceptr brief;
            unsigned back[64];
            OR_LOST(cuMemAllocAsync(&brief, 70000, first));
            OR_LOST(cuMemsetD32Async(brief, salt, 17500, first));
            OR_LOST(cuMemcpyDtoHAsync_v2(back, brief + 60000, sizeof back, first));
            OR_LOST(cuMemFreeAsync(brief, first));
            OR_LOST(cuStreamSynchronize(first));
            for (int i = 0; i < 64; i++) HOLDS(back[i] == salt);
        }
        if (round % 8 == 2) {
            CUmodule another;
            CUfunction function;
            OR_LOST(cuModuleLoadData(&another, KERNELS));
            OR_LOST(cuModuleGetFunction(&function, another, "scale"));
            OR_LOST(cuModuleUnload(another));
        }
        if (round == 0 && ++warm == threads) {
            printf("working\n");
            fflush(stdout);
        }
    }
    MUST(cuMemFree_v2(in));
    MUST(cuMemFree_v2(out));
    MUST(cuMemFreeHost(pinned_in));
    MUST(cuMemFreeHost(pinned_out));
    MUST(cuEventDestroy_v2(ready));
    MUST(cuEventDestroy_v2(done));
    MUST(cuStreamDestroy_v2(first));
    MUST(cuStreamDestroy_v2(second));
end:
    if (lost) check_all_calls_fail(in, paged_in, first, done);
    free(paged_in);
    free(paged_out);
    return NULL;
}

static void print_until_lost(void) {
    int number = 0;
    void *arguments[] = {&number};
    for (;; number++) {
        OR_LOST(cuLaunchKernel(say_fn, 128, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL));
        OR_LOST(cuCtxSynchronize());
        if (number == 0) {
            printf("working\n");
            fflush(stdout);
        }
    }
end:
    return;
}

int main(int argc, char **argv) {
    HOLDS(argc == 3);
    threads = atoi(argv[1]), rounds = atoi(argv[2]);
    open_driver();
    start_device();
    if (threads == 0) print_until_lost();
    pthread_t all[64];
    for (int n = 0; n < threads; n++) all[n] = start_thread(work, (void *)(uintptr_t)(n * 1000003 + getpid()));
    for (int n = 0; n < threads; n++) pthread_join(all[n], NULL);
    if (lost) {
        printf("lost\n");
        return 7;
    }
    MUST(cuModuleUnload(module));
    MUST(cuDevicePrimaryCtxRelease_v2(0));
    printf("all right\n");
    return 0;
}
