/* Work whose timeline is known: kernels in two streams, copies, a fill, a graph, a host function; or steps without an end. */
#include "cu.h"

enum { COUNT = 1 << 18, BYTES = 4 * COUNT };

static uint32_t numbers[COUNT];

static void nap(void *unused) {
    (void)unused;
    usleep(20000);
}

static void everything(void) {
    CUstream first, second;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr in, out, word;
    uint32_t small[1024];
    unsigned turns = turns_for(0.05);
    MUST(cuStreamCreate(&first, STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&second, STREAM_NON_BLOCKING));
    MUST(cuMemAlloc_v2(&in, BYTES));
    MUST(cuMemAlloc_v2(&out, BYTES));
    MUST(cuMemAlloc_v2(&word, 4096));
    for (int at = 0; at < COUNT; at++) numbers[at] = at;
    MUST(cuMemcpyHtoDAsync_v2(in, numbers, BYTES, first));
    MUST(cuMemsetD32Async(word, 7, 1024, second));
    /* The second stream is busy all the while; both run at once. */
    MUST(spin(word, turns, 9, second));
    for (int at = 0; at < 20; at++) MUST(scale(in, out, COUNT / 16, first));
    MUST(cuLaunchHostFunc(first, nap, NULL));
    MUST(cuStreamBeginCapture_v2(first, CAPTURE_THREAD_LOCAL));
    MUST(scale(in, out, COUNT, first));
    MUST(scale(in, out, COUNT, first));
    MUST(cuStreamEndCapture(first, &graph));
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cuGraphLaunch(exec, first));
    MUST(cuMemcpyDtoDAsync_v2(in, out, BYTES / 2, first));
    MUST(cuStreamSynchronize(first));
    MUST(cuStreamSynchronize(second));
    MUST(cuMemcpyDtoH_v2(numbers, out, BYTES));
    MUST(cuMemcpyDtoH_v2(small, word, sizeof small));
    HOLDS(numbers[5] == 16 && small[0] == 9 && small[1] == 7);
    printf("done\n");
}

static void steps(void) {
    CUdeviceptr memory;
    MUST(cuMemAlloc_v2(&memory, 4096));
    for (int step = 0;; step++) {
        MUST(scale(memory, memory, 1024, NULL));
        MUST(cuCtxSynchronize());
        printf("step %d\n", step);
        fflush(stdout);
        usleep(2000);
    }
}

int main(int count, char **words) {
    open_driver();
    start_device();
    if (count > 1 && !strcmp(words[1], "steps")) steps();
    everything();
    return 0;
}
