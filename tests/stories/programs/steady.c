/* steady: small work on a GPU, again and again until SIGTERM, every result checked.
 *
 * Says "working" after the first round. At the end it says how many rounds there were and the longest time, in
 * milliseconds, that any of them took: whoever disturbs the program's way to its GPU shows there. */
#include "cu.h"
#include <signal.h>

static volatile sig_atomic_t is_over;
static void stop(int number) {
    (void)number;
    is_over = 1;
}

enum { COUNT = 1024 };

int main(void) {
    signal(SIGTERM, stop);
    open_driver();
    start_device();
    CUstream stream;
    CUdeviceptr in, out;
    static unsigned from[COUNT], to[COUNT];
    MUST(cuStreamCreate(&stream, STREAM_NON_BLOCKING));
    MUST(cuMemAlloc_v2(&in, sizeof from));
    MUST(cuMemAlloc_v2(&out, sizeof to));
    double longest = 0, longest_at = 0, began = now();
    unsigned rounds = 0;
    while (!is_over) {
        double from_here = now();
        for (unsigned i = 0; i < COUNT; i++) from[i] = rounds + i * 7;
        MUST(cuMemcpyHtoDAsync_v2(in, from, sizeof from, stream));
        MUST(scale(in, out, COUNT, stream));
        MUST(cuMemcpyDtoHAsync_v2(to, out, sizeof to, stream));
        MUST(cuStreamSynchronize(stream));
        for (unsigned i = 0; i < COUNT; i++)
            if (to[i] != (rounds + i * 7) * 3 + 1) FAIL("round %u: [%u] is %u", rounds, i, to[i]);
        if (rounds++ == 0) {
            printf("working\n");
            fflush(stdout);
        } else if (now() - from_here > longest) {
            longest = now() - from_here;
            longest_at = from_here - began;
        }
        usleep(10000);
    }
    printf("rounds %u longest_ms %.1f at_s %.1f\n", rounds, longest * 1e3, longest_at);
    return 0;
}
