/* exits HOW [CODE]: ways to end a program that uses a device. */
#include "cu.h"
#include <signal.h>

static CUdeviceptr place;
static unsigned char *pinned;

static void leave_work_in_flight(void) {
    enum { BYTES = 4 << 20 };
    MUST(cuMemAlloc_v2(&place, BYTES));
    MUST(cuMemAllocHost_v2((void **)&pinned, BYTES));
    for (int n = 0; n < 4; n++) {
        MUST(spin(place, turns_for(0.2), 1, NULL));
        MUST(cuMemcpyHtoDAsync_v2(place, pinned, BYTES, NULL));
        MUST(cuMemcpyDtoHAsync_v2(pinned, place, BYTES, NULL));
    }
}

static int code;

static void *exit_here(void *argument) {
    (void)argument;
    MUST(cuCtxSetCurrent(context));
    leave_work_in_flight();
    exit(code);
}

static void call_at_exit(void) {
    /* CUDA does not say what calls return now; they must return. */
    CUdeviceptr more;
    cuMemAlloc_v2(&more, 64);
    cuMemFree_v2(place);
    cuCtxSynchronize();
    cuModuleUnload(module);
    cuDevicePrimaryCtxRelease_v2(0);
    if (write(1, "at exit\n", 8) != 8) _exit(92);
}

static void *call_for_ever(void *argument) {
    (void)argument;
    MUST(cuCtxSetCurrent(context));
    for (;;) cuCtxSynchronize(), cuMemcpyHtoD_v2(place, pinned, 1 << 20);
}

static void *wait_in_host_function_stream(void *argument) {
    (void)argument;
    MUST(cuCtxSetCurrent(context));
    for (;;) cuStreamSynchronize(NULL);
}

static void slow_host_function(void *argument) {
    (void)argument;
    sleep(60);
}

static void on_signal(int number) {
    char text[] = "signal\n";
    if (write(1, text, sizeof text - 1) < 0) _exit(92);
    _exit(100 + number);
}

int main(int argc, char **argv) {
    HOLDS(argc >= 2);
    const char *how = argv[1];
    code = argc > 2 ? atoi(argv[2]) : 0;
    if (!strcmp(how, "calls_at_exit_registered_first")) atexit(call_at_exit);
    void *library = open_driver();
    start_device();
    if (!strcmp(how, "plain")) return code;
    if (!strcmp(how, "in_flight")) leave_work_in_flight();
    if (!strcmp(how, "in_flight_quick")) leave_work_in_flight(), _exit(code);
    if (!strcmp(how, "from_a_thread")) pthread_join(start_thread(exit_here, NULL), NULL);
    if (!strcmp(how, "while_threads_call")) {
        leave_work_in_flight();
        for (int n = 0; n < 4; n++) start_thread(call_for_ever, NULL);
        usleep(100000);
    }
    if (!strcmp(how, "in_a_host_function")) {
        MUST(cuLaunchHostFunc(NULL, slow_host_function, NULL));
        start_thread(wait_in_host_function_stream, NULL);
        usleep(50000);
    }
    if (!strcmp(how, "after_dlclose")) {
        leave_work_in_flight();
        dlclose(library);
        usleep(300000); /* threads of the library may be anywhere */
    }
    if (!strcmp(how, "calls_at_exit")) leave_work_in_flight(), atexit(call_at_exit);
    if (!strcmp(how, "echo")) {
        int byte;
        while ((byte = getchar()) != EOF) putchar(byte);
    }
    if (!strcmp(how, "until_eof")) {
        printf("ready\n");
        fflush(stdout);
        while (getchar() != EOF) continue;
    }
    if (!strcmp(how, "catch")) signal(SIGTERM, on_signal), signal(SIGINT, on_signal);
    if (!strcmp(how, "catch") || !strcmp(how, "wait")) {
        leave_work_in_flight();
        printf("waiting\n");
        fflush(stdout);
        for (;;) pause();
    }
    exit(code);
}
