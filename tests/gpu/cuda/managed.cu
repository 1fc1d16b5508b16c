// Managed memory: filled by the host, used by kernels, read by the host; by several threads, through pointers in structures, as
// either end of copies, attached to streams, in graphs, by host functions, by system calls.
#include "say.h"

#include <cstring>
#include <thread>
#include <unistd.h>
#include <vector>

__global__ void affine(unsigned *data, size_t count, unsigned add) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < count) data[i] = data[i] * 3 + add;
}

struct Node {
    int value;
    Node *next;
};

__global__ void add_to_list(Node *node, int by) {
    for (; node; node = node->next) node->value += by;
}

static unsigned *words(size_t count, unsigned flags = cudaMemAttachGlobal) {
    unsigned *data;
    MUST(cudaMallocManaged(&data, count * sizeof(unsigned), flags));
    return data;
}

static void run(unsigned *data, size_t count, unsigned add, cudaStream_t stream = 0) {
    affine<<<(count + 255) / 256, 256, 0, stream>>>(data, count, add);
    MUST(cudaGetLastError());
}

static void simple() {
    for (size_t count : {(size_t)1, (size_t)1000, (size_t)3 << 20}) {
        unsigned *data = words(count);
        for (size_t i = 0; i < count; i++) data[i] = (unsigned)i;
        run(data, count, 7);
        MUST(cudaDeviceSynchronize());
        say("simple", "%zu %llx", count, mixed(data, count));
        data[count / 2] = 5;
        run(data, count, 1);
        MUST(cudaDeviceSynchronize());
        say("again", "%zu %u %llx", count, data[count / 2], mixed(data, count));
        MUST(cudaFree(data));
    }
    unsigned *fresh = words(5000);
    run(fresh, 5000, 9);
    MUST(cudaDeviceSynchronize());
    say("fresh", "%llx", mixed(fresh, 5000));
    MUST(cudaFree(fresh));
}

static void list() {
    Node *head = nullptr;
    for (int i = 0; i < 50; i++) {
        Node *node;
        MUST(cudaMallocManaged(&node, sizeof(Node)));
        *node = Node{i, head};
        head = node;
    }
    add_to_list<<<1, 1>>>(head, 100);
    MUST(cudaDeviceSynchronize());
    int sum = 0;
    while (head) {
        Node *next = head->next;
        sum += head->value;
        MUST(cudaFree(head));
        head = next;
    }
    say("list", "%d", sum);
}

static void threads() {
    const size_t count = 1 << 20, part = count / 8;
    unsigned *data = words(count);
    for (unsigned round = 0; round < 3; round++) {
        std::vector<std::thread> writers;
        for (size_t k = 0; k < 8; k++)
            writers.emplace_back([=] {
                for (size_t i = k * part; i < (k + 1) * part; i++) data[i] = (unsigned)i ^ round;
            });
        for (auto &writer : writers) writer.join();
        run(data, count, round);
        MUST(cudaDeviceSynchronize());
        unsigned long long sums[8];
        std::vector<std::thread> readers;
        for (size_t k = 0; k < 8; k++)
            readers.emplace_back([=, &sums] { sums[k] = mixed(data + (k * 5 % 8) * part, part); });
        for (auto &reader : readers) reader.join();
        say("threads", "%u %llx", round, mixed(sums, 8));
    }
    MUST(cudaFree(data));
}

static void copies() {
    const size_t count = 300000, bytes = count * sizeof(unsigned);
    unsigned *a = words(count), *b = words(count), *device;
    std::vector<unsigned> host(count);
    MUST(cudaMalloc(&device, bytes));
    for (size_t i = 0; i < count; i++) host[i] = a[i] = (unsigned)(i * i);
    MUST(cudaMemcpy(device, a, bytes, cudaMemcpyHostToDevice));
    a[3] = 17;
    run(device, count, 1);
    MUST(cudaMemcpy(b, device, bytes, cudaMemcpyDeviceToHost));
    say("to-managed", "%u %llx", a[3], mixed(b, count));
    MUST(cudaMemcpy(b + 1000, a, bytes / 2, cudaMemcpyDefault));
    MUST(cudaDeviceSynchronize());
    say("between", "%llx", mixed(b, count));
    MUST(cudaMemset(a + 10, 0x5a, bytes / 3));
    MUST(cudaMemcpy(host.data(), a, bytes, cudaMemcpyDefault));
    say("memset", "%llx", mixed(host.data(), count));
    MUST(cudaMemcpy2D(b, 4096, host.data(), 2048, 1024, 100, cudaMemcpyHostToDevice));
    MUST(cudaDeviceSynchronize());
    say("2d", "%llx", mixed(b, count));
    MUST(cudaFree(device));
    MUST(cudaFree(a));
    MUST(cudaFree(b));
}

static void touch(void *data) { ((unsigned *)data)[0] += 1000; }

static void streams() {
    cudaStream_t first, second;
    MUST(cudaStreamCreate(&first));
    MUST(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    const size_t count = 100000;
    unsigned *own = words(count), *hosts = words(count, cudaMemAttachHost);
    MUST(cudaStreamAttachMemAsync(first, own));
    MUST(cudaStreamSynchronize(first));
    for (size_t i = 0; i < count; i++) own[i] = hosts[i] = (unsigned)i;
    run(own, count, 4, first);
    MUST(cudaStreamSynchronize(first));
    say("attached", "%llx", mixed(own, count));
    MUST(cudaStreamAttachMemAsync(second, hosts, 0, cudaMemAttachGlobal));
    MUST(cudaStreamSynchronize(second));
    run(hosts, count, 5, second);
    MUST(cudaLaunchHostFunc(second, touch, hosts));
    run(hosts, count, 6, second);
    MUST(cudaStreamSynchronize(second));
    say("host-function", "%u %llx", hosts[0], mixed(hosts, count));

    cudaGraph_t graph;
    cudaGraphExec_t exec;
    MUST(cudaStreamBeginCapture(first, cudaStreamCaptureModeRelaxed));
    run(hosts, count, 8, first);
    run(hosts, count / 2, 9, first);
    MUST(cudaStreamEndCapture(first, &graph));
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    for (unsigned round = 0; round < 3; round++) {
        hosts[round] = 77;
        MUST(cudaGraphLaunch(exec, first));
        MUST(cudaStreamSynchronize(first));
        say("graph", "%u %llx", round, mixed(hosts, count));
    }
    MUST(cudaFree(own));
    MUST(cudaFree(hosts));
}

static void hints() {
    int device;
    MUST(cudaGetDevice(&device));
    const size_t count = 1 << 20;
    unsigned *data = words(count);
    for (size_t i = 0; i < count; i++) data[i] = (unsigned)i;
#if CUDART_VERSION >= 13000
    cudaMemLocation there{cudaMemLocationTypeDevice, device}, here{cudaMemLocationTypeHost, 0};
    MUST(cudaMemAdvise(data, count * 4, cudaMemAdviseSetPreferredLocation, there));
    MUST(cudaMemPrefetchAsync(data, count * 4, there, 0));
    run(data, count, 2);
    MUST(cudaMemPrefetchAsync(data, count * 4, here, 0));
#else
    MUST(cudaMemAdvise(data, count * 4, cudaMemAdviseSetPreferredLocation, device));
    MUST(cudaMemPrefetchAsync(data, count * 4, device));
    run(data, count, 2);
    MUST(cudaMemPrefetchAsync(data, count * 4, cudaCpuDeviceId));
#endif
    MUST(cudaDeviceSynchronize());
    say("prefetched", "%llx", mixed(data, count));
    int value;
    MUST(cudaMemRangeGetAttribute(&value, sizeof value, cudaMemRangeAttributePreferredLocation, data, count * 4));
    say("preferred", "%d", value);
    MUST(cudaMemRangeGetAttribute(&value, sizeof value, cudaMemRangeAttributeReadMostly, data, count * 4));
    say("read-mostly", "%d", value);
    cudaPointerAttributes attributes;
    MUST(cudaPointerGetAttributes(&attributes, data + 5));
    say("kind", "%d %d %d", attributes.type, attributes.hostPointer == data + 5, attributes.devicePointer == data + 5);
    void *none;
    TELL("no-bytes", cudaMallocManaged(&none, 0));
    TELL("no-flags", cudaMallocManaged(&none, 16, 8));
    cudaGetLastError();
    MUST(cudaFree(data));
    TELL("twice", cudaFree(data));
    cudaGetLastError();
}

// Only where the client has a userfaultfd for system calls.
static void calls() {
    unsigned *data = words(1 << 18);
    run(data, 1 << 18, 3);
    MUST(cudaDeviceSynchronize());
    int ends[2];
    if (pipe(ends) != 0) exit(1);
    ssize_t sent = write(ends[1], data + 100, 400);
    ssize_t got = sent == 400 ? read(ends[0], data + 70000, 400) : -1;
    say("system-calls", "%zd %zd %llx", sent, got, mixed(data, 1 << 18));
    MUST(cudaFree(data));
}

int main() {
    simple();
    list();
    threads();
    copies();
    streams();
    hints();
    calls();
    return 0;
}
