/* gpu [MIB]: a CUDA program in a guest whose only way out is a PCI function. Prints what it found and how fast it was, and at
 * the end PASS. With a second argument it prints "working" and copies until it is killed. */
#include "../../stories/programs/cu.h"

static double middle(double *times, int count) {
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0 && times[j] < times[j - 1]; j--) {
            double swap = times[j];
            times[j] = times[j - 1], times[j - 1] = swap;
        }
    return times[count / 2];
}

int main(int argc, char **argv) {
    size_t bytes = (argc > 1 ? atoi(argv[1]) : 4) * (size_t)1048576;
    unsigned count = bytes / 4;
    void *library = open_driver();
    CUresult (*name_of)(char *, int, CUdevice);
    *(void **)&name_of = dlsym(library, "cuDeviceGetName");
    HOLDS(name_of);
    double from = now();
    start_device();
    char name[100];
    MUST(name_of(name, sizeof name, 0));
    printf("device %s after %.0f ms\n", name, (now() - from) * 1e3);

    CUdeviceptr in, out;
    unsigned *there = malloc(bytes), *back = malloc(bytes);
    for (unsigned i = 0; i < count; i++) there[i] = i * 2654435761u;
    MUST(cuMemAlloc_v2(&in, bytes));
    MUST(cuMemAlloc_v2(&out, bytes));
    from = now();
    MUST(cuMemcpyHtoD_v2(in, there, bytes));
    MUST(cuCtxSynchronize());
    printf("to the device %.1f MB/s\n", bytes / 1e6 / (now() - from));
    MUST(scale(in, out, count, NULL));
    MUST(cuCtxSynchronize());
    memset(back, 0x5a, bytes);
    from = now();
    MUST(cuMemcpyDtoH_v2(back, out, bytes));
    printf("from the device %.1f MB/s\n", bytes / 1e6 / (now() - from));
    for (unsigned i = 0; i < count; i++)
        if (back[i] != there[i] * 3 + 1) FAIL("[%u of %u] is %u", i, count, back[i]);

    double times[101];
    for (int i = 0; i < 101; i++) {
        double start = now();
        MUST(scale(in, out, 64, NULL));
        MUST(cuCtxSynchronize());
        times[i] = now() - start;
    }
    printf("launch and wait %.0f us\n", middle(times, 101) * 1e6);
    if (argc > 2) {
        printf("working\n");
        fflush(stdout);
        for (;;) MUST(cuMemcpyHtoD_v2(in, there, bytes));
    }
    MUST(cuMemFree_v2(in));
    MUST(cuMemFree_v2(out));
    printf("PASS\n");
    return 0;
}
