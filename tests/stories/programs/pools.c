/* pools WHAT: one promise of CUDA about memory that streams allocate and free, which a pool that lies in the client could break.
 * Blocks of a stream are used again while kernels still run; what must hold is that no kernel of one life of a block
 * is seen in another. */
#include "cu.h"

enum { MIB = 1 << 20, REUSE_FOLLOW = 1, REUSE_OPPORTUNISTIC = 2, REUSE_INTERNAL = 3, THRESHOLD = 4, RESERVED = 5, USED = 7 };

static CUmemoryPool pool;

static uint64_t level(CUmemoryPool of, int attribute) {
    uint64_t value = 0;
    MUST(cuMemPoolGetAttribute(of, attribute, &value));
    return value;
}

static void set(CUmemoryPool of, int attribute, uint64_t value) {
    MUST(cuMemPoolSetAttribute(of, attribute, &value));
}

static CUstream new_stream(unsigned flags) {
    CUstream stream;
    MUST(cuStreamCreate(&stream, flags));
    return stream;
}

static CUdeviceptr block(size_t bytes, CUstream stream) {
    CUdeviceptr place;
    MUST(cuMemAllocAsync(&place, bytes, stream));
    return place;
}

static uint64_t free_memory(void) {
    size_t free_bytes, total;
    MUST(cuMemGetInfo_v2(&free_bytes, &total));
    return free_bytes;
}

static void fill(CUdeviceptr place, unsigned value, size_t bytes, CUstream stream) {
    MUST(cuMemsetD32Async(place, value, bytes / 4, stream));
}

/* Whether the words at a place are all this value. */
static int is_filled(CUdeviceptr place, unsigned value, size_t bytes) {
    unsigned *host = malloc(bytes);
    MUST(cuMemcpyDtoH_v2(host, place, bytes));
    int good = 1;
    for (size_t at = 0; at < bytes / 4; at++) good &= host[at] == value;
    free(host);
    return good;
}

/* A stream has what it freed again at once; the kernel that is still to run there has run before its next work. */
static void a_stream_has_its_memory_back_at_once(void) {
    CUstream stream = new_stream(STREAM_NON_BLOCKING);
    for (int round = 1; round < 5; round++) {
        CUdeviceptr first = block(64 << 10, stream);
        MUST(spin(first, turns_for(0.1), 0xbad, stream));
        MUST(cuMemFreeAsync(first, stream));
        CUdeviceptr again = block(64 << 10, stream);
        HOLDS(again == first);
        fill(again, round, 64 << 10, stream);
        HOLDS(cuStreamQuery(stream) == NOT_READY);
        MUST(cuStreamSynchronize(stream));
        HOLDS(is_filled(again, round, 64 << 10));
        MUST(cuMemFreeAsync(again, stream));
    }
}

/* Another stream does not get it while the kernel runs, with any permission to use memory again. */
static void another_stream_does_not(void) {
    CUstream first_stream = new_stream(STREAM_NON_BLOCKING);
    for (int permission = 0; permission < 8; permission++) {
        for (int bit = 0; bit < 3; bit++) {
            int allowed = permission >> bit & 1;
            MUST(cuMemPoolSetAttribute(pool, REUSE_FOLLOW + bit, &allowed));
        }
        CUdeviceptr others[16], first = block(MIB, first_stream);
        MUST(spin(first, turns_for(0.2), 0xbad, first_stream));
        MUST(cuMemFreeAsync(first, first_stream));
        CUstream stream = new_stream(STREAM_NON_BLOCKING);
        for (int n = 0; n < 16; n++) {
            others[n] = block(MIB, stream);
            fill(others[n], n, MIB, stream);
        }
        MUST(cuStreamSynchronize(stream));
        MUST(cuStreamSynchronize(first_stream));
        for (int n = 0; n < 16; n++) {
            HOLDS(is_filled(others[n], n, MIB));
            MUST(cuMemFreeAsync(others[n], stream));
        }
        MUST(cuStreamDestroy_v2(stream));
    }
    int allowed = 1;
    for (int bit = 0; bit < 3; bit++) MUST(cuMemPoolSetAttribute(pool, REUSE_FOLLOW + bit, &allowed));
}

/* A stream that waits for an event behind the free may have the memory, and then comes after the kernel. */
static void memory_follows_events(void) {
    CUstream one = new_stream(STREAM_NON_BLOCKING), two = new_stream(STREAM_NON_BLOCKING);
    CUevent event;
    MUST(cuEventCreate(&event, 0));
    set(pool, THRESHOLD, UINT64_MAX);
    int reused = 0;
    /* The first rounds make both streams known. */
    for (int round = 0; round < 4; round++) {
        CUdeviceptr first = block(24 * MIB, one), warm = block(512, two);
        MUST(cuMemFreeAsync(warm, two));
        MUST(spin(first, turns_for(0.05), 0xbad, one));
        MUST(cuMemFreeAsync(first, one));
        MUST(cuEventRecord(event, one));
        MUST(cuStreamWaitEvent(two, event, 0));
        CUdeviceptr second = block(24 * MIB, two);
        reused += second == first;
        fill(second, round, 24 * MIB, two);
        MUST(cuStreamSynchronize(two));
        HOLDS(is_filled(second, round, 24 * MIB));
        MUST(cuMemFreeAsync(second, one));
    }
    HOLDS(reused > 0);
}

/* One stream allocates and another one frees, and the host never waits: the pool does not grow for ever, and nothing is lost. */
static void memory_goes_from_stream_to_stream(void) {
    enum { ROUNDS = 300, BYTES = MIB };
    CUstream maker = new_stream(STREAM_NON_BLOCKING), taker = new_stream(STREAM_NON_BLOCKING);
    CUdeviceptr results;
    MUST(cuMemAlloc_v2(&results, ROUNDS * 4));
    CUevent made;
    MUST(cuEventCreate(&made, 0));
    unsigned turns = turns_for(0.0005);
    for (unsigned round = 0; round < ROUNDS; round++) {
        CUdeviceptr place = block(BYTES, maker);
        fill(place, round, BYTES, maker);
        MUST(cuEventRecord(made, maker));
        MUST(cuStreamWaitEvent(taker, made, 0));
        MUST(spin(place + 4, turns, 0xbad, taker));
        MUST(cuMemcpyDtoDAsync_v2(results + 4 * round, place, 4, taker));
        MUST(cuMemFreeAsync(place, taker));
    }
    uint64_t reserved = level(pool, RESERVED);
    if (reserved > 160 * (uint64_t)MIB) FAIL("the pool grew to %llu bytes", (unsigned long long)reserved);
    MUST(cuCtxSynchronize());
    unsigned found[ROUNDS];
    MUST(cuMemcpyDtoH_v2(found, results, sizeof found));
    for (unsigned round = 0; round < ROUNDS; round++) HOLDS(found[round] == round);
}

/* Streams come and go, each leaving memory behind that a kernel still uses. */
static void streams_that_end_leave_their_memory(void) {
    CUdeviceptr kept[40];
    set(pool, THRESHOLD, UINT64_MAX);
    for (int n = 0; n < 40; n++) {
        CUstream stream = new_stream(STREAM_NON_BLOCKING);
        CUdeviceptr mine = block(8 * MIB, stream);
        MUST(spin(mine, turns_for(0.01), 0xbad, stream));
        MUST(cuMemFreeAsync(mine, stream));
        MUST(cuStreamDestroy_v2(stream));
        CUstream other = new_stream(STREAM_NON_BLOCKING);
        kept[n] = block(MIB, other);
        fill(kept[n], n, MIB, other);
        MUST(cuStreamDestroy_v2(other));
    }
    uint64_t reserved = level(pool, RESERVED);
    if (reserved > 256 * (uint64_t)MIB) FAIL("the pool grew to %llu bytes", (unsigned long long)reserved);
    MUST(cuCtxSynchronize());
    for (int n = 0; n < 40; n++) HOLDS(is_filled(kept[n], n, MIB));
    for (int n = 0; n < 40; n++) MUST(cuMemFree_v2(kept[n]));
    MUST(cuMemPoolTrimTo(pool, 0));
    HOLDS(level(pool, RESERVED) == 0 && level(pool, USED) == 0);
}

/* A block may lie across pieces: copies, fills and kernels do not notice. */
static void blocks_lie_across_pieces(void) {
    enum { BYTES = 100 * MIB, WORDS = BYTES / 4 };
    CUstream stream = new_stream(STREAM_NON_BLOCKING);
    CUdeviceptr small = block(1000, stream), one = block(BYTES, stream), two = block(BYTES, stream), base;
    size_t bytes;
    HOLDS(level(pool, USED) == 1000 + 2 * (uint64_t)BYTES);
    HOLDS(small % 512 == 0 && one % 512 == 0 && two % 512 == 0);
    MUST(cuMemGetAddressRange_v2(&base, &bytes, one + 50 * MIB));
    HOLDS(base == one && bytes == BYTES);
    CUmemoryPool of = NULL;
    MUST(cuPointerGetAttribute(&of, 17, one + 1));
    HOLDS(of == pool);
    unsigned *host = malloc(BYTES), *back = malloc(BYTES);
    for (unsigned at = 0; at < WORDS; at++) host[at] = at;
    MUST(cuMemcpyHtoDAsync_v2(one, host, BYTES, stream));
    fill(two, 7, BYTES, stream);
    MUST(scale(one, one, WORDS, stream));
    MUST(cuMemcpyDtoDAsync_v2(two + 4, one + 4, BYTES - 8, stream));
    MUST(cuMemcpyDtoHAsync_v2(back, two, BYTES, stream));
    MUST(cuStreamSynchronize(stream));
    HOLDS(back[0] == 7 && back[WORDS - 1] == 7);
    for (unsigned at = 1; at < WORDS - 1; at++)
        if (back[at] != 3 * at + 1) FAIL("word %u is %u", at, back[at]);
    HOLDS(cuMemcpyDtoH_v2(back, small, 2000) != 0);
    MUST(cuMemFreeAsync(one, stream));
    HOLDS(cuMemFreeAsync(one, stream) != 0);
    HOLDS(cuMemcpyDtoH_v2(back, one, 4) != 0);
    MUST(cuMemFreeAsync(two, stream));
    MUST(cuMemFreeAsync(small, stream));
    MUST(cuStreamSynchronize(stream));
    HOLDS(level(pool, RESERVED) == 0);
}

/* A device without memory: what pools keep and nobody uses is given to whoever asks. */
static void a_full_device_takes_from_pools(void) {
    CUstream one = new_stream(STREAM_NON_BLOCKING), two = new_stream(STREAM_NON_BLOCKING);
    set(pool, THRESHOLD, UINT64_MAX);
    uint64_t all = free_memory();
    CUdeviceptr blocks[1024], place;
    int count = 0;
    CUresult code;
    while ((code = cuMemAllocAsync(&place, 20 * MIB, count % 2 ? one : two)) == 0 && count < 1024) blocks[count++] = place;
    HOLDS(code == OUT_OF_MEMORY);
    HOLDS((uint64_t)count * 20 * MIB + 64 * MIB > all);
    HOLDS(level(pool, USED) == (uint64_t)count * 20 * MIB);
    GIVES(OUT_OF_MEMORY, cuMemAllocAsync(&place, 64 * MIB, one));
    GIVES(OUT_OF_MEMORY, cuMemAlloc_v2(&place, 64 * MIB));
    for (int n = 0; n < count; n++) {
        MUST(spin(blocks[n], 10, 0xbad, n % 2 ? one : two));
        MUST(cuMemFreeAsync(blocks[n], n % 2 ? one : two));
    }
    /* Half of it lies in each stream, in turn: only both together have as much in one place. */
    MUST(cuMemAllocAsync(&place, (size_t)(all / 4 * 3), one));
    fill(place, 5, 16 * MIB, one);
    MUST(cuStreamSynchronize(one));
    HOLDS(is_filled(place, 5, 16 * MIB));
    MUST(cuMemFreeAsync(place, one));
    MUST(cuMemAlloc_v2(&place, (size_t)(all / 4 * 3)));
    MUST(cuMemFree_v2(place));
    MUST(cuMemPoolTrimTo(pool, 0));
    MUST(cuCtxSynchronize());
    HOLDS(free_memory() == all);
}

/* A pool that is destroyed keeps its memory until the last block is freed. */
static void a_pool_ends_with_its_last_block(void) {
    CUstream stream = new_stream(STREAM_NON_BLOCKING);
    struct pool_props props = {.allocation_type = 1, .location_type = 1, .max_size = 10 * MIB};
    CUmemoryPool mine;
    uint64_t before = free_memory();
    MUST(cuMemPoolCreate(&mine, &props));
    set(mine, THRESHOLD, UINT64_MAX);
    CUdeviceptr first, second;
    GIVES(OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&first, 11 * MIB, mine, stream));
    MUST(cuMemAllocFromPoolAsync(&first, 6 * MIB, mine, stream));
    GIVES(OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&second, 6 * MIB, mine, stream));
    MUST(cuMemPoolDestroy(mine));
    HOLDS(cuMemAllocFromPoolAsync(&second, MIB, mine, stream) != 0);
    fill(first, 9, 6 * MIB, stream);
    MUST(cuStreamSynchronize(stream));
    HOLDS(is_filled(first, 9, 6 * MIB));
    HOLDS(free_memory() < before);
    MUST(cuMemFreeAsync(first, stream));
    MUST(cuCtxSynchronize());
    HOLDS(free_memory() == before);
}

/* Memory of a context ends with it, and the pool goes on in its next life. */
static void a_reset_ends_all_blocks(void) {
    uint64_t before = free_memory();
    CUdeviceptr place = block(50 * MIB, NULL);
    fill(place, 1, 50 * MIB, NULL);
    MUST(cuDevicePrimaryCtxReset_v2(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    HOLDS(level(pool, USED) == 0 && level(pool, RESERVED) == 0);
    HOLDS(cuMemFreeAsync(place, NULL) != 0);
    /* What runs in a context that ended runs to its end; then its memory goes. */
    for (double from = now(); free_memory() < before && now() - from < 20;) usleep(10000);
    HOLDS(free_memory() >= before);
    place = block(50 * MIB, NULL);
    fill(place, 2, 50 * MIB, NULL);
    MUST(cuCtxSynchronize());
    HOLDS(is_filled(place, 2, 50 * MIB));
}

enum { THREADS = 4, HELD = 24, TURNS = 600 };
static struct {
    pthread_mutex_t lock;
    CUdeviceptr place;
    unsigned words, value;
    CUevent ready;
} shared[THREADS] = {[0 ... THREADS - 1] = {PTHREAD_MUTEX_INITIALIZER}};

/* Allocates, fills, hands blocks to others, checks and frees what it got from them. */
static void *trade(void *argument) {
    unsigned self = (unsigned)(size_t)argument, state = self + 1;
    MUST(cuCtxSetCurrent(context));
    CUstream stream = new_stream(STREAM_NON_BLOCKING);
    CUdeviceptr results;
    MUST(cuMemAlloc_v2(&results, TURNS * 8));
    unsigned wanted[2 * TURNS], count = 0, held = 0;
    struct { CUdeviceptr place; unsigned words, value; } mine[HELD];
    for (unsigned turn = 0; turn < TURNS; turn++) {
        state = state * 1664525 + 1013904223;
        unsigned words = (state >> 8) % (state >> 30 ? 5000 : 600000) + 2, value = self << 24 | turn;
        if (held == HELD) {
            unsigned at = state % HELD;
            MUST(cuMemcpyDtoDAsync_v2(results + 4 * count, mine[at].place + 4 * (mine[at].words - 1), 4, stream));
            wanted[count++] = mine[at].value;
            MUST(cuMemFreeAsync(mine[at].place, stream));
            mine[at] = mine[--held];
        }
        mine[held].place = block(4 * words, stream);
        mine[held].words = words;
        mine[held].value = value;
        fill(mine[held].place, value, 4 * words, stream);
        held++;
        unsigned slot = state % THREADS;
        pthread_mutex_lock(&shared[slot].lock);
        if (shared[slot].place) {
            /* What another thread made: wait for it in the stream, look at it, free it here. */
            MUST(cuStreamWaitEvent(stream, shared[slot].ready, 0));
            MUST(cuMemcpyDtoDAsync_v2(results + 4 * count, shared[slot].place + 4 * (shared[slot].words / 2), 4, stream));
            wanted[count++] = shared[slot].value;
            MUST(cuMemFreeAsync(shared[slot].place, stream));
            MUST(cuEventDestroy_v2(shared[slot].ready));
        }
        held--;
        shared[slot].place = mine[held].place;
        shared[slot].words = mine[held].words;
        shared[slot].value = mine[held].value;
        MUST(cuEventCreate(&shared[slot].ready, 0));
        MUST(cuEventRecord(shared[slot].ready, stream));
        pthread_mutex_unlock(&shared[slot].lock);
        if (state % 97 == 0) MUST(cuStreamSynchronize(stream));
    }
    MUST(cuStreamSynchronize(stream));
    unsigned found[2 * TURNS];
    MUST(cuMemcpyDtoH_v2(found, results, 4 * count));
    for (unsigned n = 0; n < count; n++)
        if (found[n] != wanted[n]) FAIL("thread %u, number %u: %x instead of %x", self, n, found[n], wanted[n]);
    while (held) MUST(cuMemFreeAsync(mine[--held].place, stream));
    MUST(cuMemFree_v2(results));
    MUST(cuStreamDestroy_v2(stream));
    return NULL;
}

static void threads_trade_blocks(void) {
    set(pool, THRESHOLD, UINT64_MAX);
    pthread_t threads[THREADS];
    for (size_t n = 0; n < THREADS; n++) threads[n] = start_thread(trade, (void *)n);
    for (size_t n = 0; n < THREADS; n++) pthread_join(threads[n], NULL);
    for (size_t n = 0; n < THREADS; n++) MUST(cuMemFree_v2(shared[n].place));
    MUST(cuCtxSynchronize());
    MUST(cuMemPoolTrimTo(pool, 0));
    HOLDS(level(pool, USED) == 0 && level(pool, RESERVED) == 0);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } all[] = {
#define ROW(name) {#name, name}
        ROW(a_stream_has_its_memory_back_at_once), ROW(another_stream_does_not), ROW(memory_follows_events),
        ROW(memory_goes_from_stream_to_stream), ROW(streams_that_end_leave_their_memory), ROW(blocks_lie_across_pieces),
        ROW(a_full_device_takes_from_pools), ROW(a_pool_ends_with_its_last_block), ROW(a_reset_ends_all_blocks),
        ROW(threads_trade_blocks),
    };
    open_driver();
    start_device();
    MUST(cuDeviceGetDefaultMemPool(&pool, 0));
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        if (argc == 2 && !strcmp(argv[1], all[n].name)) {
            all[n].run();
            return 0;
        }
    FAIL("no such promise");
}
