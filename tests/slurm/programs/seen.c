/* seen SECONDS: tells which GPUs there are, marks their memory, waits, and looks whether the marks are still there.
 *
 *   begin 1700000000.123 l-00c0ffee00c0ffee GPU-… GPU-…
 *   end 1700000003.456
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 1024, GPUS_MAX = 8 };

static void *driver;

#define MUST(call) \
    do { \
        int code = (call); \
        if (code != 0) { \
            fprintf(stderr, "seen: %s gave %d\n", #call, code); \
            return 9; \
        } \
    } while (0)

static void *find(const char *name) {
    void *found = dlsym(driver, name);
    if (!found) {
        fprintf(stderr, "seen: no %s\n", name);
        exit(8);
    }
    return found;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int count, char **words) {
    double seconds = count > 1 ? atof(words[1]) : 0;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "seen: %s\n", dlerror());
        return 7;
    }
    int (*init)(unsigned) = find("cuInit");
    int (*get_count)(int *) = find("cuDeviceGetCount");
    int (*get_uuid)(unsigned char *, int) = find("cuDeviceGetUuid_v2");
    int (*retain)(void **, int) = find("cuDevicePrimaryCtxRetain");
    int (*set_current)(void *) = find("cuCtxSetCurrent");
    int (*allocate)(uint64_t *, size_t) = find("cuMemAlloc_v2");
    int (*copy_in)(uint64_t, const void *, size_t) = find("cuMemcpyHtoD_v2");
    int (*copy_out)(void *, uint64_t, size_t) = find("cuMemcpyDtoH_v2");

    static uint32_t mark[WORDS], back[WORDS];
    uint64_t memory[GPUS_MAX];
    void *contexts[GPUS_MAX];
    int gpus = 0;
    MUST(init(0));
    MUST(get_count(&gpus));
    if (gpus > GPUS_MAX) return 6;
    for (int word = 0; word < WORDS; word++) mark[word] = (uint32_t)getpid() * 2654435761u + word;
    const char *lease = getenv("DXPU_LEASE");
    printf("begin %.3f %s", now(), lease ? lease : "none");
    for (int gpu = 0; gpu < gpus; gpu++) {
        unsigned char id[16];
        MUST(get_uuid(id, gpu));
        printf(" GPU-");
        for (int byte = 0; byte < 16; byte++) printf(byte == 4 || byte == 6 || byte == 8 || byte == 10 ? "-%02x" : "%02x", id[byte]);
        MUST(retain(&contexts[gpu], gpu));
        MUST(set_current(contexts[gpu]));
        MUST(allocate(&memory[gpu], sizeof mark));
        MUST(copy_in(memory[gpu], mark, sizeof mark));
    }
    printf("\n");
    fflush(stdout);
    double until = now() + seconds;
    do {
        for (int gpu = 0; gpu < gpus; gpu++) {
            MUST(set_current(contexts[gpu]));
            MUST(copy_out(back, memory[gpu], sizeof back));
            for (int word = 0; word < WORDS; word++) {
                if (back[word] != mark[word]) {
                    fprintf(stderr, "seen: another program wrote to this GPU\n");
                    return 5;
                }
            }
        }
        usleep(50 * 1000);
    } while (now() < until);
    printf("end %.3f\n", now());
    return 0;
}
