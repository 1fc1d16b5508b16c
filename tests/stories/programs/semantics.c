/* semantics WHAT: one promise of CUDA about order, time and errors, which a remote driver could easily break. */
#include "cu.h"

enum { SMALL = 1000, LARGE = 3 << 20 };
static const size_t BOTH[] = {SMALL, LARGE};

static CUstream new_stream(unsigned flags) {
    CUstream stream;
    MUST(cuStreamCreate(&stream, flags));
    return stream;
}

static CUdeviceptr device_bytes(size_t bytes) {
    CUdeviceptr place;
    MUST(cuMemAlloc_v2(&place, bytes));
    return place;
}

static unsigned char *pinned_bytes(size_t bytes) {
    void *place;
    MUST(cuMemAllocHost_v2(&place, bytes));
    return place;
}

static void fill_device(CUdeviceptr place, unsigned char value, size_t bytes) {
    MUST(cuMemsetD32Async(place, value * 0x01010101u, bytes / 4, NULL));
    MUST(cuCtxSynchronize());
}

static int all_are(const unsigned char *bytes, unsigned char value, size_t count) {
    for (size_t at = 0; at < count; at++)
        if (bytes[at] != value) return 0;
    return 1;
}

/* A kernel's fault is told by the next wait, not by the launch; then the context is dead for good. */
static void deferred_error(void) {
    CUdeviceptr place = device_bytes(SMALL);
    MUST(cuLaunchKernel(wild_fn, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    GIVES(ILLEGAL_ADDRESS, cuCtxSynchronize());
    GIVES(ILLEGAL_ADDRESS, cuMemAlloc_v2(&place, SMALL));
    GIVES(ILLEGAL_ADDRESS, scale(place, place, 10, NULL));
    GIVES(ILLEGAL_ADDRESS, cuCtxSynchronize());
}

/* A copy into pinned memory returns at once, lands when its turn comes, and is there after the wait. */
static void pinned_copy_lands_later(void) {
    for (int size = 0; size < 2; size++) {
        size_t bytes = BOTH[size];
        CUstream stream = new_stream(STREAM_NON_BLOCKING);
        CUdeviceptr place = device_bytes(bytes), other = device_bytes(4);
        unsigned char *host = pinned_bytes(bytes);
        fill_device(place, 0xaa, bytes);
        memset(host, 0x11, bytes);
        MUST(spin(other, turns_for(0.4), 1, stream));
        double from = now();
        MUST(cuMemcpyDtoHAsync_v2(host, place, bytes, stream));
        HOLDS(cuStreamQuery(stream) == NOT_READY);
        HOLDS(all_are(host, 0x11, bytes));
        if (now() - from > 0.2) FAIL("an asynchronous copy held the caller for %.2f s", now() - from);
        MUST(cuStreamSynchronize(stream));
        HOLDS(all_are(host, 0xaa, bytes / 4 * 4));
    }
}

/* Pinned memory is read when the copy runs, not when it is enqueued. */
static void pinned_memory_is_read_late(void) {
    for (int size = 0; size < 2; size++) {
        size_t bytes = BOTH[size];
        CUstream stream = new_stream(STREAM_NON_BLOCKING);
        CUdeviceptr first = device_bytes(bytes), second = device_bytes(bytes), other = device_bytes(4);
        unsigned char *host = pinned_bytes(bytes), *back = pinned_bytes(bytes);
        fill_device(first, 0xbb, bytes);
        fill_device(second, 0, bytes);
        memset(host, 0x22, bytes);
        MUST(spin(other, turns_for(0.2), 1, stream));
        MUST(cuMemcpyDtoHAsync_v2(host, first, bytes, stream));
        MUST(cuMemcpyHtoDAsync_v2(second, host, bytes, stream));
        MUST(cuMemcpyDtoHAsync_v2(back, second, bytes, stream));
        MUST(cuStreamSynchronize(stream));
        HOLDS(all_are(back, 0xbb, bytes / 4 * 4));
    }
}

struct middle {
    unsigned char *host;
    size_t bytes;
    atomic_int seen, ran;
};

static void look_and_change(void *argument) {
    struct middle *middle = argument;
    middle->seen = all_are(middle->host, 0xcc, middle->bytes);
    usleep(20000);
    memset(middle->host, 0xdd, middle->bytes);
    middle->ran++;
}

/* Device to host, host function, host to device: each sees what the one before it did. */
static void host_functions_keep_order(void) {
    for (int size = 0; size < 2; size++) {
        size_t bytes = BOTH[size];
        CUstream stream = new_stream(STREAM_NON_BLOCKING);
        CUdeviceptr place = device_bytes(bytes);
        unsigned char *back = pinned_bytes(bytes);
        struct middle middle = {pinned_bytes(bytes), bytes, 0, 0};
        for (int again = 1; again <= 3; again++) {
            fill_device(place, 0xcc, bytes);
            memset(middle.host, 0x33, bytes);
            MUST(cuMemcpyDtoHAsync_v2(middle.host, place, bytes, stream));
            MUST(cuLaunchHostFunc(stream, look_and_change, &middle));
            MUST(cuMemcpyHtoDAsync_v2(place, middle.host, bytes, stream));
            MUST(cuMemcpyDtoHAsync_v2(back, place, bytes, stream));
            MUST(cuStreamSynchronize(stream));
            HOLDS(middle.seen == 1);
            HOLDS(middle.ran == again);
            HOLDS(all_are(back, 0xdd, bytes));
        }
    }
}

struct handover {
    CUdeviceptr place;
    CUevent event;
    CUstream second;
    atomic_int ready, taken;
    unsigned value;
};

enum { HANDOVERS = 200 };

static void *take_over(void *argument) {
    struct handover *at = argument;
    MUST(cuCtxSetCurrent(context));
    for (unsigned n = 1; n <= HANDOVERS; n++) {
        while (at->ready != (int)n) sched_yield();
        unsigned found = 0;
        MUST(cuStreamWaitEvent(at->second, at->event, 0));
        MUST(scale(at->place, at->place + 4, 1, at->second));
        MUST(cuMemcpyDtoHAsync_v2(&found, at->place + 4, 4, at->second));
        MUST(cuStreamSynchronize(at->second));
        if (found != n * 3 + 1) FAIL("handover %u found %u", n, found);
        at->taken = n;
    }
    return NULL;
}

/* What one thread enqueued before it told another thread is before what that one enqueues. */
static void threads_keep_order(void) {
    CUstream first = new_stream(STREAM_NON_BLOCKING);
    struct handover at = {.place = device_bytes(8), .second = new_stream(STREAM_NON_BLOCKING)};
    MUST(cuEventCreate(&at.event, 2));
    unsigned turns = turns_for(0.001);
    pthread_t other = start_thread(take_over, &at);
    for (unsigned n = 1; n <= HANDOVERS; n++) {
        MUST(spin(at.place, turns, n, first));
        MUST(cuEventRecord(at.event, first));
        at.ready = n;
        while (at.taken != (int)n) sched_yield();
    }
    pthread_join(other, NULL);
}

static atomic_int waited;

static void *wait_long(void *stream) {
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamSynchronize(stream));
    waited = 1;
    return NULL;
}

/* A thread that waits for a long kernel holds no other thread up. */
static void waiting_blocks_nobody(void) {
    CUstream slow = new_stream(STREAM_NON_BLOCKING), quick = new_stream(STREAM_NON_BLOCKING);
    CUdeviceptr place = device_bytes(4), other = device_bytes(LARGE);
    unsigned *host = calloc(1, LARGE);
    MUST(spin(place, turns_for(2), 9, slow));
    pthread_t waiter = start_thread(wait_long, slow);
    usleep(50000);
    double from = now();
    for (int n = 0; n < 20; n++) {
        size_t bytes = n % 5 ? SMALL : LARGE;
        for (size_t at = 0; at < bytes / 4; at++) host[at] = n;
        MUST(cuMemcpyHtoDAsync_v2(other, host, bytes, quick));
        MUST(scale(other, other, SMALL / 4, quick));
        MUST(cuMemcpyDtoHAsync_v2(host, other, bytes, quick));
        MUST(cuStreamSynchronize(quick));
        HOLDS(host[0] == (unsigned)n * 3 + 1);
    }
    if (waited) FAIL("the other thread's work took %.2f s, longer than a kernel of 2 s", now() - from);
    pthread_join(waiter, NULL);
}

static void *on_my_default_stream(void *argument) {
    CUdeviceptr place = *(CUdeviceptr *)argument;
    unsigned found = 0, turns = 1, value = 5;
    void *arguments[] = {&place, &turns, &value};
    MUST(cuCtxSetCurrent(context));
    MUST(cuLaunchKernel_ptsz(spin_fn, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
    MUST(cuMemcpyDtoHAsync_v2(&found, place, 4, PER_THREAD));
    MUST(cuStreamSynchronize(PER_THREAD));
    HOLDS(found == 5);
    return NULL;
}

/* Each thread has a default stream of its own; a busy one delays no other. */
static void per_thread_default_streams(void) {
    CUdeviceptr mine = device_bytes(4), theirs = device_bytes(4);
    unsigned found = 0;
    MUST(spin(mine, turns_for(1.5), 8, PER_THREAD));
    pthread_join(start_thread(on_my_default_stream, &theirs), NULL);
    HOLDS(cuStreamQuery(PER_THREAD) == NOT_READY);
    MUST(cuMemcpyDtoHAsync_v2(&found, mine, 4, PER_THREAD));
    MUST(cuStreamSynchronize(PER_THREAD));
    HOLDS(found == 8);
}

/* The legacy stream waits for blocking streams and they for it; non-blocking streams stand apart. */
static void legacy_stream_order(void) {
    CUstream before = new_stream(0), after = new_stream(0), apart = new_stream(STREAM_NON_BLOCKING);
    CUdeviceptr place = device_bytes(8), other = device_bytes(4);
    unsigned *found = (unsigned *)pinned_bytes(8);
    MUST(cuMemsetD32Async(place, 0, 2, NULL));
    MUST(cuCtxSynchronize());
    MUST(spin(place, turns_for(1), 10, before));
    MUST(scale(place, place, 1, NULL));
    MUST(scale(place, place + 4, 1, after));
    MUST(cuMemcpyDtoHAsync_v2(found, place, 8, after));
    MUST(spin(other, 1, 3, apart));
    MUST(cuStreamSynchronize(apart));
    HOLDS(cuStreamQuery(before) == NOT_READY);
    MUST(cuStreamSynchronize(after));
    HOLDS(found[0] == 31 && found[1] == 94);
}

/* A small synchronous copy waits for no kernel; yet what it wrote is there for whatever comes next, on any stream. */
static void synchronous_copies_are_there(void) {
    CUstream apart = new_stream(STREAM_NON_BLOCKING);
    CUdeviceptr place = device_bytes(4), other = device_bytes(4);
    unsigned *pinned = (unsigned *)pinned_bytes(4), turns = turns_for(0.1);
    double held = 0;
    for (unsigned round = 1; round <= 8; round++) {
        unsigned value = round, found = 0;
        /* The stream that a synchronous copy takes is busy. */
        MUST(spin(other, turns, 1, NULL));
        double from = now();
        MUST(cuMemcpyHtoD_v2(place, &value, 4));
        held += now() - from;
        value = 0xdead;
        CUstream stream = round % 4 == 0 ? NULL : round % 4 == 1 ? new_stream(STREAM_NON_BLOCKING) : apart;
        if (round % 4 != 3) {
            MUST(scale(place, place, 1, stream));
            MUST(cuMemcpyDtoHAsync_v2(&found, place, 4, stream));
            HOLDS(found == round * 3 + 1);
        } else {
            MUST(cuMemcpyDtoHAsync_v2(pinned, place, 4, stream));
            MUST(cuStreamSynchronize(stream));
            HOLDS(*pinned == round);
        }
        /* A copy that is over holds no stream up. */
        MUST(cuCtxSynchronize());
        MUST(spin(other, turns, 1, NULL));
        MUST(scale(place, place, 1, apart));
        MUST(cuStreamSynchronize(apart));
        HOLDS(cuStreamQuery(NULL) == NOT_READY);
        MUST(cuCtxSynchronize());
    }
    if (held > 0.4) FAIL("8 small copies held the caller for %.2f s", held);
}

/* Many small results at once, from two streams: whoever hears that an event was reached finds all that came before it. */
static void small_results_come_first(void) {
    enum { RESULTS = 100, ROUNDS = 20 };
    CUstream streams[2] = {new_stream(STREAM_NON_BLOCKING), new_stream(STREAM_NON_BLOCKING)};
    CUdeviceptr places[2] = {device_bytes(4 * RESULTS), device_bytes(4 * RESULTS)};
    unsigned *found = (unsigned *)pinned_bytes(2 * 4 * RESULTS);
    CUevent events[2];
    for (int at = 0; at < 2; at++) MUST(cuEventCreate(&events[at], 2));
    for (unsigned round = 1; round <= ROUNDS; round++) {
        memset(found, 0, 2 * 4 * RESULTS);
        for (int at = 0; at < 2; at++) {
            MUST(cuMemsetD32Async(places[at], round * 10 + at, RESULTS, streams[at]));
            for (int n = 0; n < RESULTS; n++)
                MUST(cuMemcpyDtoHAsync_v2(&found[at * RESULTS + n], places[at] + 4 * n, 4, streams[at]));
            MUST(cuEventRecord(events[at], streams[at]));
            /* What comes after the event does not matter to it. */
            MUST(cuMemsetD32Async(places[at], 0xdead, RESULTS, streams[at]));
        }
        for (int at = 1; at >= 0; at--) {
            CUresult reached;
            while ((reached = cuEventQuery(events[at])) == NOT_READY) {}
            MUST(reached);
            for (int n = 0; n < RESULTS; n++) HOLDS(found[at * RESULTS + n] == round * 10 + at);
        }
    }
}

/* A kernel that is given pinned memory reads and writes it; what else the program does there stays. */
static void kernels_reach_pinned_memory(void) {
    CUstream stream = new_stream(STREAM_NON_BLOCKING);
    CUdeviceptr place = device_bytes(4);
    for (unsigned count = 8; count <= 1 << 20; count *= 64) {
        /* Three thirds: read, written, and the program's own. */
        unsigned *host = (unsigned *)pinned_bytes(3 * 4 * count);
        for (unsigned n = 0; n < 3 * count; n++) host[n] = n;
        MUST(spin(place, turns_for(0.05), 1, stream));
        MUST(scale((CUdeviceptr)host, (CUdeviceptr)(host + count), count, stream));
        for (unsigned n = 0; n < count; n++) host[2 * count + n] = 0xfeed;
        /* The next launch reads what the last one wrote, with no wait between them. */
        MUST(scale((CUdeviceptr)(host + count), (CUdeviceptr)host, count, stream));
        MUST(cuStreamSynchronize(stream));
        for (unsigned n = 0; n < count; n++) {
            HOLDS(host[count + n] == 3 * n + 1);
            HOLDS(host[n] == 3 * (3 * n + 1) + 1);
            HOLDS(host[2 * count + n] == 0xfeed);
        }
        MUST(cuMemFreeHost(host));
    }
}

/* A kernel that runs already sees what the program writes into pinned memory, when the program waits for it at the latest;
 * and what comes behind the kernel does not begin before. */
static void running_kernels_see_pinned_memory(void) {
    CUstream streams[2] = {new_stream(STREAM_NON_BLOCKING), NULL};
    CUdeviceptr place = device_bytes(4);
    CUevent event;
    MUST(cuEventCreate(&event, 0));
    unsigned turns = turns_for(20);
    for (unsigned n = 0; n < 4 * 5; n++) {
        CUstream stream = streams[n % 2];
        unsigned *word = (unsigned *)pinned_bytes(4);
        *word = 0;
        /* The stream may be busy: then the kernel begins after the word was written, or before. */
        if (n % 4 < 2) MUST(spin(place, turns_for(0.02), 1, stream));
        CUdeviceptr pointer = (CUdeviceptr)word;
        void *arguments[] = {&pointer, &turns};
        MUST(cuLaunchKernel(await_fn, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
        MUST(cuEventRecord(event, stream));
        MUST(cuMemsetD32Async(place, 7, 1, stream));
        if (n % 3 == 0) usleep(5000);
        *word = 1;
        switch (n % 5) {
        case 0: MUST(cuEventSynchronize(event)); break;
        case 1: MUST(cuStreamSynchronize(stream)); break;
        case 2: MUST(cuCtxSynchronize()); break;
        case 3: while (cuEventQuery(event) == NOT_READY) {} break;
        default: while (cuStreamQuery(stream) == NOT_READY) {} break;
        }
        HOLDS(*word == 2);
        /* And once more with the same word, which the device knows by now. */
        *word = 0;
        MUST(cuLaunchKernel(await_fn, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
        *word = 1;
        MUST(cuStreamSynchronize(stream));
        HOLDS(*word == 2);
        MUST(cuMemFreeHost(word));
    }
}

static void look(void *argument) {
    struct middle *middle = argument;
    middle->seen = ((unsigned *)middle->host)[1];
    middle->ran++;
}

/* A memset of pinned memory without a stream has happened when it returns; one with a stream happens in the stream's turn. */
static void a_memset_of_pinned_memory_is_done(void) {
    CUstream stream = new_stream(STREAM_NON_BLOCKING);
    unsigned char *host = pinned_bytes(64);
    for (unsigned n = 0; n < 500; n++) {
        MUST(cuMemsetD8_v2((CUdeviceptr)host, (unsigned char)n, 64));
        HOLDS(host[0] == (unsigned char)n && host[63] == (unsigned char)n);
        host[0] = host[63] = (unsigned char)(n + 1);
        MUST(cuMemsetD32Async((CUdeviceptr)host, 0x01010101u * (unsigned char)(n + 2), 16, stream));
        MUST(cuStreamSynchronize(stream));
        HOLDS(host[0] == (unsigned char)(n + 2) && host[63] == (unsigned char)(n + 2));
    }
}

/* What a kernel wrote into pinned memory is there by whatever means the program learns that the kernel is done. */
static void pinned_memory_is_there_in_time(void) {
    CUstream stream = new_stream(STREAM_NON_BLOCKING), second = new_stream(STREAM_NON_BLOCKING);
    CUdeviceptr place = device_bytes(4);
    unsigned *host = (unsigned *)pinned_bytes(8);
    CUevent event;
    MUST(cuEventCreate(&event, 0));
    struct middle middle = {(unsigned char *)host, 8, 0, 0};
    for (unsigned n = 0; n < 7 * 20; n++) {
        host[0] = n;
        MUST(spin(place, turns_for(0.002), 1, stream));
        MUST(scale((CUdeviceptr)host, (CUdeviceptr)(host + 1), 1, stream));
        switch (n % 7) {
        case 0: MUST(cuCtxSynchronize()); break;
        case 1: MUST(cuEventRecord(event, stream)); MUST(cuEventSynchronize(event)); break;
        case 2:
            MUST(cuEventRecord(event, stream));
            while (cuEventQuery(event) == NOT_READY) {}
            break;
        case 3: while (cuStreamQuery(stream) == NOT_READY) {} break;
        case 4:
            MUST(cuLaunchHostFunc(stream, look, &middle));
            MUST(cuStreamSynchronize(stream));
            HOLDS((unsigned)middle.seen == 3 * n + 1);
            break;
        case 5:
            MUST(cuEventRecord(event, stream));
            MUST(cuStreamWaitEvent(second, event, 0));
            MUST(cuStreamSynchronize(second));
            break;
        case 6: {
            unsigned got;
            /* A copy from the memory finds what the kernel before it wrote. */
            MUST(cuMemcpyHtoDAsync_v2(place, host + 1, 4, stream));
            MUST(cuMemcpyDtoHAsync_v2(&got, place, 4, stream));
            HOLDS(got == 3 * n + 1);
            MUST(cuStreamSynchronize(stream));
        }
        }
        if (host[1] != 3 * n + 1) FAIL("after way %u: %u, not %u", n % 7, host[1], 3 * n + 1);
    }
}

/* Where device memory is named, pinned memory may be, too. */
static void pinned_memory_has_a_device_name(void) {
    CUstream stream = new_stream(STREAM_NON_BLOCKING);
    CUdeviceptr place = device_bytes(64);
    unsigned char *host = pinned_bytes(64), *other = pinned_bytes(64);
    MUST(cuMemsetD8_v2((CUdeviceptr)host, 0x5a, 64));
    MUST(cuCtxSynchronize());
    HOLDS(all_are(host, 0x5a, 64));
    MUST(cuMemsetD32Async((CUdeviceptr)host, 0x01020304, 8, stream));
    MUST(cuMemcpyDtoHAsync_v2(other, (CUdeviceptr)host, 64, stream));
    MUST(cuMemcpyDtoDAsync_v2(place, (CUdeviceptr)host, 64, stream));
    MUST(cuStreamSynchronize(stream));
    HOLDS(host[0] == 4 && host[31] == 1 && all_are(host + 32, 0x5a, 32) && !memcmp(host, other, 64));
    memset(other, 0, 64);
    MUST(cuMemcpyDtoH_v2(other, place, 64));
    HOLDS(!memcmp(host, other, 64));
    /* Memory that nobody pinned has none. */
    GIVES(1, cuMemsetD8_v2((CUdeviceptr)&stream, 0, 4));
    GIVES(1, cuMemcpyDtoH_v2(other, (CUdeviceptr)&stream, 4));
}

static atomic_int captured;

static void *work_beside_a_capture(void *argument) {
    (void)argument;
    MUST(cuCtxSetCurrent(context));
    unsigned back, value;
    for (value = 1; !captured || value < 20; value++) {
        CUdeviceptr place = device_bytes(LARGE);
        MUST(cuMemcpyHtoD_v2(place, &value, 4));
        MUST(scale(place, place, 1, PER_THREAD));
        MUST(cuStreamSynchronize(PER_THREAD));
        MUST(cuMemcpyDtoH_v2(&back, place, 4));
        HOLDS(back == value * 3 + 1);
        MUST(cuMemFree_v2(place));
    }
    return NULL;
}

/* A capture that is local to its thread disturbs no other thread, and captures nothing of theirs. */
static void capture_beside_work(void) {
    CUstream stream = new_stream(STREAM_NON_BLOCKING);
    CUdeviceptr place = device_bytes(4);
    unsigned *found = (unsigned *)pinned_bytes(4);
    CUgraph graph;
    CUgraphExec exec;
    pthread_t other = start_thread(work_beside_a_capture, NULL);
    for (int round = 0; round < 10; round++) {
        MUST(cuMemsetD32Async(place, 0, 1, stream));
        MUST(cuStreamSynchronize(stream));
        MUST(cuStreamBeginCapture_v2(stream, CAPTURE_THREAD_LOCAL));
        for (int n = 0; n < 4; n++) MUST(scale(place, place, 1, stream));
        MUST(cuMemcpyDtoHAsync_v2(found, place, 4, stream));
        usleep(5000);
        MUST(cuStreamEndCapture(stream, &graph));
        MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
        unsigned expected = 0;
        for (int n = 0; n < 5; n++) {
            for (int step = 0; step < 4; step++) expected = expected * 3 + 1;
            MUST(cuGraphLaunch(exec, stream));
            MUST(cuStreamSynchronize(stream));
            if (*found != expected) FAIL("round %d, launch %d: %u, not %u", round, n, *found, expected);
        }
        MUST(cuGraphExecDestroy(exec));
        MUST(cuGraphDestroy(graph));
    }
    captured = 1;
    pthread_join(other, NULL);
}

/* What a graph writes into pinned memory is what a later copy of the stream reads there. */
static void copies_behind_a_graph(void) {
    for (int size = 0; size < 2; size++) {
        size_t bytes = BOTH[size];
        CUstream stream = new_stream(STREAM_NON_BLOCKING);
        CUdeviceptr first = device_bytes(bytes), second = device_bytes(bytes), other = device_bytes(4);
        unsigned char *host = pinned_bytes(bytes), *back = pinned_bytes(bytes);
        unsigned turns = turns_for(0.05);
        CUgraph graph;
        CUgraphExec exec;
        MUST(cuStreamBeginCapture_v2(stream, CAPTURE_THREAD_LOCAL));
        MUST(spin(other, turns, 1, stream));
        MUST(cuMemcpyDtoHAsync_v2(host, first, bytes, stream));
        MUST(cuStreamEndCapture(stream, &graph));
        MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
        for (int round = 1; round < 6; round++) {
            fill_device(first, round, bytes);
            memset(host, 0x44, bytes);
            MUST(cuGraphLaunch(exec, stream));
            MUST(cuMemcpyHtoDAsync_v2(second, host, bytes, stream));
            MUST(cuMemcpyDtoHAsync_v2(back, second, bytes, stream));
            MUST(cuStreamSynchronize(stream));
            HOLDS(all_are(back, round, bytes / 4 * 4));
        }
    }
}

/* What a kernel prints is on standard output, in its place, when the wait returns. */
static void kernel_prints_in_time(void) {
    printf("before\n");
    int number = 42;
    void *arguments[] = {&number};
    MUST(cuLaunchKernel(say_fn, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
    MUST(cuCtxSynchronize());
    if (write(1, "after\n", 6) != 6) FAIL("cannot write");
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } all[] = {
#define ROW(name) {#name, name}
        ROW(deferred_error), ROW(pinned_copy_lands_later), ROW(pinned_memory_is_read_late),
        ROW(host_functions_keep_order), ROW(threads_keep_order), ROW(waiting_blocks_nobody),
        ROW(synchronous_copies_are_there), ROW(per_thread_default_streams), ROW(legacy_stream_order),
        ROW(small_results_come_first), ROW(kernels_reach_pinned_memory), ROW(running_kernels_see_pinned_memory),
        ROW(a_memset_of_pinned_memory_is_done),
        ROW(pinned_memory_is_there_in_time),
        ROW(pinned_memory_has_a_device_name),
        ROW(capture_beside_work), ROW(copies_behind_a_graph), ROW(kernel_prints_in_time),
    };
    open_driver();
    start_device();
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        if (argc == 2 && !strcmp(argv[1], all[n].name)) {
            all[n].run();
            return 0;
        }
    FAIL("no such promise");
}
