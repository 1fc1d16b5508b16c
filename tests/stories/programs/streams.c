/* Three hundred streams that wait at once, each for a host function; all of them get to their end. */
#include "cu.h"

enum { STREAMS = 300 };

static atomic_int open_now, ran;

static void hold(void *unused) {
    (void)unused;
    while (!atomic_load(&open_now)) usleep(1000);
    atomic_fetch_add(&ran, 1);
}

static void *open_later(void *unused) {
    (void)unused;
    sleep(4);
    atomic_store(&open_now, 1);
    return NULL;
}

int main(void) {
    CUstream streams[STREAMS];
    pthread_t opener;
    open_driver();
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    for (int at = 0; at < STREAMS; at++) MUST(cuStreamCreate(&streams[at], STREAM_NON_BLOCKING));
    MUST(cuCtxSynchronize());
    pthread_create(&opener, NULL, open_later, NULL);
    for (int at = 0; at < STREAMS; at++) MUST(cuLaunchHostFunc(streams[at], hold, NULL));
    printf("waiting\n");
    fflush(stdout);
    for (int at = 0; at < STREAMS; at++) MUST(cuStreamSynchronize(streams[at]));
    pthread_join(opener, NULL);
    if (atomic_load(&ran) != STREAMS) {
        printf("%d of %d ran\n", atomic_load(&ran), STREAMS);
        return 1;
    }
    printf("all right\n");
    return 0;
}
