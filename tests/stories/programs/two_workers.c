/* One program with the devices of two workers: work on both, copies between them, and the loss of the second. */
#include "cu.h"

enum { BYTES = 3000000 };

int main(void) {
    int count;
    CUcontext contexts[2];
    CUdeviceptr places[2];
    open_driver();
    MUST(cuInit(0));
    MUST(cuDeviceGetCount(&count));
    HOLDS(count == 2);
    unsigned *host = malloc(BYTES), *back = malloc(BYTES);
    for (unsigned n = 0; n < BYTES / 4; n++) host[n] = n * 11;
    for (int n = 0; n < 2; n++) {
        MUST(cuDevicePrimaryCtxRetain(&contexts[n], n));
        MUST(cuCtxSetCurrent(contexts[n]));
        MUST(cuMemAlloc_v2(&places[n], BYTES));
        MUST(cuModuleLoadData(&module, KERNELS));
        MUST(cuModuleGetFunction(&scale_fn, module, "scale"));
        MUST(cuMemcpyHtoD_v2(places[n], host, BYTES));
        MUST(scale(places[n], places[n], BYTES / 4, NULL));
        MUST(cuMemcpyDtoH_v2(back, places[n], BYTES));
        for (unsigned i = 0; i < BYTES / 4; i++) HOLDS(back[i] == host[i] * 3 + 1);
    }
    /* The second device's result, scaled twice, by way of the first device and back. */
    MUST(scale(places[1], places[1], BYTES / 4, NULL));
    MUST(cuMemcpyDtoDAsync_v2(places[0], places[1], BYTES, NULL));
    MUST(cuCtxSynchronize());
    MUST(cuCtxSetCurrent(contexts[0]));
    MUST(cuMemcpyDtoH_v2(back, places[0], BYTES));
    for (unsigned i = 0; i < BYTES / 4; i++) HOLDS(back[i] == (host[i] * 3 + 1) * 3 + 1);
    printf("copied\n");
    fflush(stdout);
    MUST(cuCtxSetCurrent(contexts[1]));
    double from = now();
    while (cuCtxSynchronize() != UNAVAILABLE) {
        if (now() - from > 8) FAIL("the loss of a worker goes unnoticed");
        usleep(10000);
    }
    GIVES(UNAVAILABLE, cuMemcpyDtoH_v2(back, places[1], BYTES));
    MUST(cuCtxSetCurrent(contexts[0]));
    MUST(cuMemcpyHtoD_v2(places[0], host, BYTES));
    MUST(cuMemcpyDtoH_v2(back, places[0], BYTES));
    HOLDS(!memcmp(host, back, BYTES));
    return 0;
}
