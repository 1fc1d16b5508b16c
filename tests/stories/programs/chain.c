/* chain STEPS, or chain 0 FILE for as many steps as there is time for until FILE is there: each step's numbers come from those of the last one, on the device alone; the host sees a few of them.
 * chain STEPS FILE MIB holds so much memory beside that; a FILE of - is none.
 *
 * It says "working" after the first steps, and at the end how many there were, and a digest of all that it saw and of all numbers. A
 * step that were lost, done twice or done with other bytes would change the digest. */
#include "cu.h"

enum { COUNT = 1 << 16, SEEN = 64, PAUSE_US = 2000 };

static unsigned held[1 << 18];
static uint64_t digest = 0xcbf29ce484222325u;
static void take(const unsigned *numbers, size_t count) {
    for (size_t i = 0; i < count; i++) digest = (digest ^ numbers[i]) * 0x100000001b3u;
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 100, done = 0;
    const char *stop = argc > 2 && strcmp(argv[2], "-") ? argv[2] : NULL;
    size_t mebibytes = argc > 3 ? strtoul(argv[3], NULL, 10) : 0;
    open_driver();
    start_device();
    static unsigned all[COUNT];
    CUstream stream;
    CUdeviceptr now_at, next_at, held_at = 0;
    MUST(cuStreamCreate(&stream, STREAM_NON_BLOCKING));
    MUST(cuMemAlloc_v2(&now_at, sizeof all));
    MUST(cuMemAlloc_v2(&next_at, sizeof all));
    for (unsigned i = 0; i < COUNT; i++) all[i] = i * 2654435761u;
    MUST(cuMemcpyHtoD_v2(now_at, all, sizeof all));
    if (mebibytes) MUST(cuMemAlloc_v2(&held_at, mebibytes * sizeof held));
    for (size_t part = 0; part < mebibytes; part++) {
        for (size_t i = 0; i < sizeof held / sizeof *held; i++) held[i] = (unsigned)(part * 77 + i * 40503u);
        MUST(cuMemcpyHtoD_v2(held_at + part * sizeof held, held, sizeof held));
    }
    for (int step = 0; stop ? access(stop, F_OK) != 0 : step < steps; step++, done++) {
        unsigned seen[SEEN];
        MUST(scale(now_at, next_at, COUNT, stream));
        MUST(cuMemcpyDtoHAsync_v2(seen, next_at + 1024 * (step % 256), sizeof seen, stream));
        MUST(cuStreamSynchronize(stream));
        take(seen, SEEN);
        CUdeviceptr last = now_at;
        now_at = next_at, next_at = last;
        if (step == 3) {
            printf("working\n");
            fflush(stdout);
        }
        usleep(PAUSE_US);
    }
    MUST(cuMemcpyDtoH_v2(all, now_at, sizeof all));
    take(all, COUNT);
    for (size_t part = 0; part < mebibytes; part++) {
        MUST(cuMemcpyDtoH_v2(held, held_at + part * sizeof held, sizeof held));
        take(held, sizeof held / sizeof *held);
    }
    printf("steps %d\ndigest %016llx\n", done, (unsigned long long)digest);
    return 0;
}
