// Host memory of the program's own that it registers as mapped: kernels walk through pointers inside of it, alone and in graphs, the
// host and kernels change it in turn, and it is ordinary memory again once it is unregistered.
#include "say.h"

#include <cstring>
#include <sys/mman.h>
#include <thread>
#include <vector>

struct Node {
    Node *next;
    unsigned value;
    unsigned visits;
};

static const size_t COUNT = 1 << 16;

// What is true natively and remotely.
static void check(const char *key, bool is_right) { say(key, "%s", is_right ? "right" : "wrong"); }

__global__ void walk(Node **first, unsigned add, unsigned long long *total) {
    unsigned long long sum = 0;
    for (Node *node = *first; node; node = node->next) {
        node->visits += add;
        sum += node->value;
    }
    *total = sum;
}

__global__ void scale(unsigned *words, size_t count, unsigned by) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < count) words[i] = words[i] * by + (unsigned)i;
}

static void *pages(size_t bytes) {
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) exit(2);
    return memory;
}

// Every 4,097th node in turn: neighbours in the list lie far apart.
static Node *linked(Node *nodes) {
    for (size_t i = 0; i < COUNT; i++) {
        size_t at = i * 4097 % COUNT, then = (i + 1) * 4097 % COUNT;
        nodes[at] = Node{i + 1 < COUNT ? nodes + then : nullptr, (unsigned)(i * 2654435761u), 0};
    }
    return nodes;
}

static unsigned long long sum_of(const Node *nodes) {
    unsigned long long sum = 0;
    for (const Node *node = nodes; node; node = node->next) sum += node->value;
    return sum;
}

static void lists() {
    size_t bytes = COUNT * sizeof(Node);
    Node *nodes = linked((Node *)pages(bytes));
    MUST(cudaHostRegister(nodes, bytes, cudaHostRegisterMapped));
    Node **first = nullptr;
    unsigned long long *total = nullptr, found = 0;
    MUST(cudaMalloc(&first, sizeof(Node *)));
    MUST(cudaMalloc(&total, sizeof(*total)));
    MUST(cudaMemcpy(first, &nodes, sizeof(Node *), cudaMemcpyHostToDevice));
    walk<<<1, 1>>>(first, 1, total);
    MUST(cudaMemcpy(&found, total, sizeof(found), cudaMemcpyDeviceToHost));
    check("a list", found == sum_of(nodes) && nodes[0].visits == 1 && nodes[COUNT - 1].visits == 1);

    nodes[COUNT / 2].value += 5;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    MUST(cudaStreamCreate(&stream));
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    walk<<<1, 1, 0, stream>>>(first, 2, total);
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    for (int turn = 0; turn < 3; turn++) {
        nodes[turn].value ^= 77;
        MUST(cudaGraphLaunch(exec, stream));
        MUST(cudaStreamSynchronize(stream));
        MUST(cudaMemcpy(&found, total, sizeof(found), cudaMemcpyDeviceToHost));
        check("a list in a graph", found == sum_of(nodes) && nodes[7].visits == 1 + 2u * (turn + 1));
    }

    void *device = nullptr;
    unsigned flags = 0;
    cudaPointerAttributes attributes;
    MUST(cudaHostGetDevicePointer(&device, nodes + 3, 0));
    MUST(cudaHostGetFlags(&flags, nodes));
    MUST(cudaPointerGetAttributes(&attributes, nodes + 3));
    check("one address", device == nodes + 3 && attributes.devicePointer == nodes + 3);
    say("kind and flags", "%d %u", attributes.type, flags & cudaHostAllocMapped);
    TELL("registered twice", cudaHostRegister(nodes, 4096, cudaHostRegisterMapped));
    TELL("not at its start", cudaHostUnregister((char *)nodes + 4096));
    TELL("freed as allocated", cudaFreeHost(nodes));
    (void)cudaGetLastError();

    walk<<<1, 1>>>(first, 1000, total);
    MUST(cudaHostUnregister(nodes));
    check("ordinary memory again", nodes[0].visits == 1007 && nodes[COUNT - 1].visits == 1007);
    TELL("unregistered twice", cudaHostUnregister(nodes));
    (void)cudaGetLastError();
    MUST(cudaHostRegister(nodes, bytes, cudaHostRegisterMapped));
    walk<<<1, 1>>>(first, 1, total);
    MUST(cudaDeviceSynchronize());
    check("registered again", nodes[0].visits == 1008);
    MUST(cudaHostUnregister(nodes));
    munmap(nodes, bytes);
}

// Copies of every kind from and to it, and a kernel beside a thread of the program.
static void in_turn() {
    size_t count = 3 << 20, bytes = count * sizeof(unsigned);
    unsigned *words = (unsigned *)pages(bytes), *device = nullptr;
    std::vector<unsigned> copied(count), model(count);
    auto scaled = [count](std::vector<unsigned> &values, unsigned by) {
        for (size_t i = 0; i < count; i++) values[i] = values[i] * by + (unsigned)i;
    };
    for (size_t i = 0; i < count; i++) words[i] = copied[i] = model[i] = (unsigned)(i * i);
    MUST(cudaHostRegister(words, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable));
    MUST(cudaMalloc(&device, bytes));
    MUST(cudaMemcpyAsync(device, words, bytes, cudaMemcpyHostToDevice, 0));
    scale<<<(count + 255) / 256, 256>>>(device, count, 3);
    scale<<<(count + 255) / 256, 256>>>(words, count, 5);
    MUST(cudaDeviceSynchronize());
    scaled(copied, 3);
    scaled(model, 5);
    check("by a kernel", !memcmp(words, model.data(), bytes));
    MUST(cudaMemcpyAsync(words, device, bytes / 2, cudaMemcpyDeviceToHost, 0));
    MUST(cudaMemsetAsync(words + count - 1000, 17, 4000, 0));
    MUST(cudaDeviceSynchronize());
    memcpy(model.data(), copied.data(), bytes / 2);
    memset(model.data() + count - 1000, 17, 4000);
    check("by copies", !memcmp(words, model.data(), bytes));
    std::thread writer([words, count] {
        for (size_t i = 0; i < count; i += 1021) words[i] += 9;
    });
    writer.join();
    scale<<<(count + 255) / 256, 256>>>(words, count, 7);
    MUST(cudaHostUnregister(words));
    for (size_t i = 0; i < count; i += 1021) model[i] += 9;
    scaled(model, 7);
    check("by a thread", !memcmp(words, model.data(), bytes));
    MUST(cudaFree(device));
    munmap(words, bytes);
}

// Not whole pages: a kernel that is given its address may use it all the same.
static void parts() {
    size_t count = 100000;
    char *memory = (char *)malloc(count * sizeof(unsigned) + 64);
    unsigned *words = (unsigned *)(memory + 16 - ((size_t)memory & 15) + 4);
    for (size_t i = 0; i < count; i++) words[i] = (unsigned)i;
    MUST(cudaHostRegister(words, count * sizeof(unsigned), cudaHostRegisterMapped));
    scale<<<(count + 255) / 256, 256>>>(words, count, 2);
    MUST(cudaDeviceSynchronize());
    check("within pages", words[0] == 0 && words[99999] == 3 * 99999);
    MUST(cudaHostUnregister(words));
    free(memory);
}

int main() {
    MUST(cudaSetDevice(0));
    lists();
    in_turn();
    parts();
    return 0;
}
