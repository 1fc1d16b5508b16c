// Two processes share memory and events: this one and another of the same program, which it starts with a socket to it.
// Handles of cudaMalloc, interprocess events, physical memory and pools by descriptor, and the codes of mistakes.
#include "say.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>

extern char **environ;

static const int count = 3 << 20;
static const size_t bytes = count * sizeof(int);
static const size_t step = 2 << 20;
static int line = -1;

static const char *name_of(CUresult code) {
    const char *name = "?";
    DRIVER(cuGetErrorName)(code, &name);
    return name;
}

#define TELL_DRIVER(key, call) say(key, "%s", name_of(call))
#define MUST_DRIVER(call)                                                     \
    do {                                                                      \
        CUresult code_ = (call);                                              \
        if (code_ != CUDA_SUCCESS) {                                          \
            printf("! %s:%d %s\n", __FILE__, __LINE__, name_of(code_));      \
            exit(1);                                                          \
        }                                                                     \
    } while (0)

__global__ void fill(int *data, int n, int value) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) data[i] = value + i;
}

__global__ void twice(int *data, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) data[i] *= 2;
}

// Work that takes long enough for the other process to wait for it.
__global__ void slowly(int *data, int n, int value, long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {
    }
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) data[i] = value;
}

static void put(const void *data, size_t size, int fd = -1) {
    iovec part = {const_cast<void *>(data), size};
    char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (fd >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(head), &fd, sizeof fd);
    }
    if (sendmsg(line, &message, 0) != (ssize_t)size) {
        printf("! cannot send\n");
        exit(1);
    }
}

static int get(void *data, size_t size) {
    iovec part = {data, size};
    char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (recvmsg(line, &message, MSG_WAITALL) != (ssize_t)size) {
        printf("! the other process is gone\n");
        exit(1);
    }
    int fd = -1;
    if (cmsghdr *head = CMSG_FIRSTHDR(&message)) memcpy(&fd, CMSG_DATA(head), sizeof fd);
    return fd;
}

static void ready() {
    char word = 1;
    put(&word, 1);
}

static void until_ready() {
    char word;
    get(&word, 1);
}

static unsigned long long sum_of(const int *data, int n) {
    int *host = (int *)malloc(n * sizeof(int));
    MUST(cudaMemcpy(host, data, n * sizeof(int), cudaMemcpyDeviceToHost));
    unsigned long long sum = mixed(host, n);
    free(host);
    return sum;
}

static CUmemAllocationProp properties(CUmemAllocationHandleType type) {
    CUmemAllocationProp given = {};
    given.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    given.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    given.requestedHandleTypes = type;
    return given;
}

static int *mapped(CUmemGenericAllocationHandle memory) {
    CUdeviceptr address;
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    MUST_DRIVER(DRIVER(cuMemAddressReserve)(&address, step, 0, 0, 0));
    MUST_DRIVER(DRIVER(cuMemMap)(address, step, 0, memory, 0));
    MUST_DRIVER(DRIVER(cuMemSetAccess)(address, step, &access, 1));
    return (int *)address;
}

static void attributes() {
    struct {
        const char *name;
        CUdevice_attribute number;
    } asked[] = {{"ipc-events", CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED},
                 {"descriptors", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED}};
    for (auto &one : asked) {
        int value = -1;
        MUST_DRIVER(DRIVER(cuDeviceGetAttribute)(&value, one.number, 0));
        say(one.name, "%d", value);
    }
    int types = 0;
    MUST_DRIVER(DRIVER(cuDeviceGetAttribute)(&types, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 0));
    say("pools-by-descriptor", "%d", types & 1);
}

static void mistakes(const cudaIpcMemHandle_t &handle, int *data) {
    void *opened = nullptr;
    TELL("open-in-the-same-process", cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess));
    cudaIpcMemHandle_t none;
    memset(&none, 0, sizeof none);
    TELL("open-zeros", cudaIpcOpenMemHandle(&opened, none, cudaIpcMemLazyEnablePeerAccess));
    TELL("open-without-flags", cudaIpcOpenMemHandle(&opened, none, 0));
    cudaIpcEventHandle_t no_event;
    memset(&no_event, 0, sizeof no_event);
    cudaEvent_t event;
    TELL("open-event-zeros", cudaIpcOpenEventHandle(&event, no_event));
    TELL("close-what-is-not-open", cudaIpcCloseMemHandle(data));
    TELL("timed-interprocess-event", cudaEventCreateWithFlags(&event, cudaEventInterprocess));
    MUST(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    TELL("handle-of-a-plain-event", cudaIpcGetEventHandle(&no_event, event));
    MUST(cudaEventDestroy(event));
    cudaIpcMemHandle_t other;
    TELL("handle-of-nothing", cudaIpcGetMemHandle(&other, (void *)0x1234));
    void *managed, *pooled;
    MUST(cudaMallocManaged(&managed, 4096));
    TELL("handle-of-managed", cudaIpcGetMemHandle(&other, managed));
    MUST(cudaMallocAsync(&pooled, 4096, 0));
    TELL("handle-of-pool-memory", cudaIpcGetMemHandle(&other, pooled));
    cudaGetLastError();
    MUST(cudaFree(managed));
    MUST(cudaFreeAsync(pooled, 0));

    CUmemGenericAllocationHandle memory;
    CUmemAllocationProp given = properties(CU_MEM_HANDLE_TYPE_NONE);
    int fd = -1;
    MUST_DRIVER(DRIVER(cuMemCreate)(&memory, step, &given, 0));
    TELL_DRIVER("export-private", DRIVER(cuMemExportToShareableHandle)(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST_DRIVER(DRIVER(cuMemRelease)(memory));
    int null = open("/dev/null", O_RDWR);
    TELL_DRIVER("import-dev-null", DRIVER(cuMemImportFromShareableHandle)(&memory, (void *)(size_t)null, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(null);
    CUmemoryPool pool;
    MUST_DRIVER(DRIVER(cuDeviceGetDefaultMemPool)(&pool, 0));
    TELL_DRIVER("export-default-pool", DRIVER(cuMemPoolExportToShareableHandle)(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

static void first() {
    int *data, *small;
    MUST(cudaMalloc(&data, bytes));
    MUST(cudaMalloc(&small, 4096));
    fill<<<64, 256>>>(data, count, 5);
    fill<<<1, 256>>>(small, 1024, 77);
    cudaIpcMemHandle_t handle, handle_again, small_handle;
    MUST(cudaIpcGetMemHandle(&handle, data));
    MUST(cudaIpcGetMemHandle(&handle_again, data + 100));
    say("handles-are-the-same", "%d", memcmp(&handle, &handle_again, sizeof handle) == 0);
    MUST(cudaIpcGetMemHandle(&small_handle, small));
    attributes();
    mistakes(handle, data);

    cudaEvent_t event;
    MUST(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
    cudaIpcEventHandle_t event_handle;
    MUST(cudaIpcGetEventHandle(&event_handle, event));
    cudaStream_t stream;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    slowly<<<64, 256, 0, stream>>>(data, count, 3, 400'000'000);
    MUST(cudaEventRecord(event, stream));
    put(&handle, sizeof handle);
    put(&small_handle, sizeof small_handle);
    put(&event_handle, sizeof event_handle);
    until_ready();
    // The other process has recorded the event behind its own work.
    MUST(cudaStreamWaitEvent(stream, event));
    MUST(cudaStreamSynchronize(stream));
    say("after-the-other", "%llx", sum_of(data, count));
    say("small-after-the-other", "%llx", sum_of(small, 1024));
    // Copies in turns: what one has copied, the other finds.
    for (int round = 0; round < 50; round++) {
        int values[16];
        for (int &value : values) value = round;
        MUST(cudaMemcpy(data, values, sizeof values, cudaMemcpyHostToDevice));
        // A small copy from pageable memory may return before the device has it.
        MUST(cudaDeviceSynchronize());
        ready();
        until_ready();
        MUST(cudaMemcpy(values, data, sizeof values, cudaMemcpyDeviceToHost));
        if (values[15] != -round) say("a-turn-is-lost", "%d %d", round, values[15]);
    }

    CUmemGenericAllocationHandle memory;
    CUmemAllocationProp given = properties(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    MUST_DRIVER(DRIVER(cuMemCreate)(&memory, step, &given, 0));
    int fd = -1;
    MUST_DRIVER(DRIVER(cuMemExportToShareableHandle)(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    int *physical = mapped(memory);
    fill<<<64, 256>>>(physical, step / 4, 9);
    MUST(cudaDeviceSynchronize());
    put("m", 1, fd);
    close(fd);
    until_ready();
    say("physical-after-the-other", "%llx", sum_of(physical, step / 4));

    CUmemPoolProps props = {};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemoryPool pool;
    MUST_DRIVER(DRIVER(cuMemPoolCreate)(&pool, &props));
    MUST_DRIVER(DRIVER(cuMemPoolExportToShareableHandle)(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CUdeviceptr pooled;
    MUST_DRIVER(DRIVER(cuMemAllocFromPoolAsync)(&pooled, bytes, pool, 0));
    fill<<<64, 256>>>((int *)pooled, count, 21);
    MUST(cudaDeviceSynchronize());
    CUmemPoolPtrExportData pointer;
    MUST_DRIVER(DRIVER(cuMemPoolExportPointer)(&pointer, pooled));
    put(&pointer, sizeof pointer, fd);
    close(fd);
    until_ready();
    say("pool-after-the-other", "%llx", sum_of((int *)pooled, count));
    MUST_DRIVER(DRIVER(cuMemFreeAsync)(pooled, 0));
    MUST(cudaFree(data));
    MUST(cudaFree(small));
}

static void second() {
    cudaIpcMemHandle_t handle, small_handle;
    cudaIpcEventHandle_t event_handle;
    get(&handle, sizeof handle);
    get(&small_handle, sizeof small_handle);
    get(&event_handle, sizeof event_handle);
    int *data, *again, *small;
    cudaEvent_t event;
    MUST(cudaIpcOpenMemHandle((void **)&data, handle, cudaIpcMemLazyEnablePeerAccess));
    MUST(cudaIpcOpenMemHandle((void **)&again, handle, cudaIpcMemLazyEnablePeerAccess));
    MUST(cudaIpcOpenMemHandle((void **)&small, small_handle, cudaIpcMemLazyEnablePeerAccess));
    say("other-opens-the-same-address", "%d", data == again);
    MUST(cudaIpcOpenEventHandle(&event, event_handle));
    CUdeviceptr base;
    size_t size;
    MUST_DRIVER(DRIVER(cuMemGetAddressRange)(&base, &size, (CUdeviceptr)data + 5));
    say("other-range", "%d %zu", base == (CUdeviceptr)data, size);
    cudaStream_t stream;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    MUST(cudaStreamWaitEvent(stream, event));
    twice<<<64, 256, 0, stream>>>(data, count);
    twice<<<1, 256, 0, stream>>>(small, 1024);
    MUST(cudaEventRecord(event, stream));
    ready();
    MUST(cudaEventSynchronize(event));
    TELL("other-event-is-done", cudaEventQuery(event));
    say("other-found", "%llx", sum_of(data, count));
    TELL("other-frees-what-it-opened", cudaFree(small));
    cudaGetLastError();
    for (int round = 0; round < 50; round++) {
        int values[16];
        until_ready();
        MUST(cudaMemcpy(values, data, sizeof values, cudaMemcpyDeviceToHost));
        if (values[15] != round) say("other-lost-a-turn", "%d %d", round, values[15]);
        for (int &value : values) value = -round;
        MUST(cudaMemcpy(data, values, sizeof values, cudaMemcpyHostToDevice));
        // A small copy from pageable memory may return before the device has it.
        MUST(cudaDeviceSynchronize());
        ready();
    }
    MUST(cudaIpcCloseMemHandle(data));
    MUST(cudaIpcCloseMemHandle(data));
    TELL("other-closes-once-more", cudaIpcCloseMemHandle(data));
    cudaGetLastError();

    char word;
    int fd = get(&word, 1);
    CUmemGenericAllocationHandle memory;
    MUST_DRIVER(DRIVER(cuMemImportFromShareableHandle)(&memory, (void *)(size_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    int *physical = mapped(memory);
    say("other-physical", "%llx", sum_of(physical, step / 4));
    twice<<<64, 256>>>(physical, step / 4);
    MUST(cudaDeviceSynchronize());
    ready();

    CUmemPoolPtrExportData pointer;
    fd = get(&pointer, sizeof pointer);
    CUmemoryPool pool;
    MUST_DRIVER(DRIVER(cuMemPoolImportFromShareableHandle)(&pool, (void *)(size_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    close(fd);
    CUdeviceptr pooled, none;
    TELL_DRIVER("other-allocates-from-the-pool", DRIVER(cuMemAllocFromPoolAsync)(&none, 4096, pool, 0));
    MUST_DRIVER(DRIVER(cuMemPoolImportPointer)(&pooled, pool, &pointer));
    say("other-pooled", "%llx", sum_of((int *)pooled, count));
    twice<<<64, 256>>>((int *)pooled, count);
    MUST(cudaDeviceSynchronize());
    MUST_DRIVER(DRIVER(cuMemFreeAsync)(pooled, 0));
    MUST(cudaDeviceSynchronize());
    ready();
}

int main(int words, char **word) {
    if (words > 1) {
        line = atoi(word[1]);
        MUST(cudaSetDevice(0));
        second();
        return 0;
    }
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 1;
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    line = ends[0];
    std::string number = std::to_string(ends[1]);
    char *other[] = {word[0], const_cast<char *>(number.c_str()), nullptr};
    pid_t pid;
    if (posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, other, environ) != 0) return 1;
    close(ends[1]);
    MUST(cudaSetDevice(0));
    first();
    int status = -1;
    waitpid(pid, &status, 0);
    say("end-of-the-other", "%d", status);
    return 0;
}
