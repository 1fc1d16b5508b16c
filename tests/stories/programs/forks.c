/* forks WHAT: what becomes of the driver in the children of a program. */
#include "cu.h"
#include <fcntl.h>
#include <signal.h>

/* The child's exit code; a child that does not end in time is a hang. */
static int end_of(pid_t child) {
    int status = 0;
    double from = now();
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (now() - from > 10) {
            kill(child, SIGKILL);
            FAIL("the child hangs");
        }
        usleep(1000);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void use_device(void) {
    CUdeviceptr place;
    unsigned value = 5, back = 0;
    MUST(cuMemAlloc_v2(&place, 4));
    MUST(cuMemcpyHtoD_v2(place, &value, 4));
    MUST(scale(place, place, 1, NULL));
    MUST(cuMemcpyDtoH_v2(&back, place, 4));
    HOLDS(back == 16);
    MUST(cuMemFree_v2(place));
}

/* A child that uses CUDA is told that it cannot; one that does not is unharmed; the parent goes on. */
static void child_uses_cuda(void) {
    start_device();
    use_device();
    for (int n = 0; n < 10; n++) {
        pid_t child = fork();
        if (child == 0) {
            CUdeviceptr place;
            int count;
            GIVES(NOT_INITIALIZED, cuMemAlloc_v2(&place, 4));
            GIVES(NOT_INITIALIZED, cuCtxSynchronize());
            GIVES(NOT_INITIALIZED, cuDeviceGetCount(&count));
            GIVES(NOT_INITIALIZED, cuInit(0));
            GIVES(NOT_INITIALIZED, scale(0, 0, 1, NULL));
            exit(0); /* with everything that runs at exit */
        }
        use_device();
        HOLDS(end_of(child) == 0);
        use_device();
    }
}

static void child_does_not(void) {
    start_device();
    pid_t child = fork();
    if (child == 0) {
        char *block = malloc(1 << 20);
        memset(block, 1, 1 << 20);
        free(block);
        execl("/bin/sh", "sh", "-c", "echo from the child; exit 5", NULL);
    }
    use_device();
    HOLDS(end_of(child) == 5);
    use_device();
}

static atomic_int forking = 1;

static void *keep_busy(void *argument) {
    (void)argument;
    MUST(cuCtxSetCurrent(context));
    while (forking) use_device();
    return NULL;
}

/* Forks while other threads are in the middle of calls: locks that they hold stay held in the child for ever. */
static void fork_under_load(void) {
    start_device();
    pthread_t busy[3];
    for (int n = 0; n < 3; n++) busy[n] = start_thread(keep_busy, NULL);
    for (int n = 0; n < 50; n++) {
        pid_t child = fork();
        if (child == 0) {
            GIVES(NOT_INITIALIZED, cuCtxSynchronize());
            GIVES(NOT_INITIALIZED, cuInit(0));
            exit(0);
        }
        HOLDS(end_of(child) == 0);
    }
    forking = 0;
    for (int n = 0; n < 3; n++) pthread_join(busy[n], NULL);
}

/* A child's own files, which may have the numbers of our sockets, must survive a further fork. */
static void grandchild_keeps_its_files(void) {
    start_device();
    pid_t child = fork();
    if (child == 0) {
        int files[40];
        for (int n = 0; n < 40; n++) HOLDS((files[n] = open("/dev/null", O_RDONLY)) >= 0);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            for (int n = 0; n < 40; n++) HOLDS(fcntl(files[n], F_GETFD) >= 0);
            exit(0);
        }
        exit(end_of(grandchild));
    }
    HOLDS(end_of(child) == 0);
    use_device();
}

/* Loaded here, initialised only in the children: each has a device of its own. */
static void fork_before_init(void) {
    pid_t children[3];
    for (int n = 0; n < 3; n++)
        if ((children[n] = fork()) == 0) {
            start_device();
            use_device();
            exit(0);
        }
    for (int n = 0; n < 3; n++) HOLDS(end_of(children[n]) == 0);
    start_device();
    use_device();
}

/* The parent waits to be killed; the child lives on and must not keep the session alive. */
static void child_outlives(void) {
    start_device();
    use_device();
    pid_t child = fork();
    if (child == 0) {
        sleep(30);
        exit(0);
    }
    printf("child %d\n", child);
    fflush(stdout);
    pause();
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } all[] = {
#define ROW(name) {#name, name}
        ROW(child_uses_cuda), ROW(child_does_not), ROW(fork_under_load), ROW(grandchild_keeps_its_files),
        ROW(fork_before_init), ROW(child_outlives),
    };
    open_driver();
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        if (argc == 2 && !strcmp(argv[1], all[n].name)) {
            all[n].run();
            return 0;
        }
    FAIL("no such fork");
}
