// Pinned memory that is mapped (cudaHostAllocMapped): used by kernels through its own address, through pointers in structures, in
// graphs, of hundreds of megabytes, as either end of copies, by read(2).
#include "say.h"

#include <cstring>
#include <unistd.h>
#include <vector>

__global__ void affine(unsigned *data, size_t count, unsigned add) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < count) data[i] = data[i] * 3 + add;
}

struct Table {
    size_t rows;
    unsigned *row[16];
    size_t count[16];
};

__global__ void add_to_rows(const Table *table, unsigned by) {
    for (size_t r = blockIdx.x; r < table->rows; r += gridDim.x)
        for (size_t i = threadIdx.x; i < table->count[r]; i += blockDim.x) table->row[r][i] += by;
}

static unsigned *words(size_t count) {
    unsigned *data;
    MUST(cudaHostAlloc(&data, count * sizeof(unsigned), cudaHostAllocMapped));
    return data;
}

static void run(unsigned *data, size_t count, unsigned add, cudaStream_t stream = 0) {
    affine<<<(count + 255) / 256, 256, 0, stream>>>(data, count, add);
    MUST(cudaGetLastError());
}

static void simple(size_t most) {
    for (size_t count : {(size_t)20000, (size_t)1 << 20, (size_t)40 << 20}) {
        if (count > most) continue;
        unsigned *data = words(count), *device;
        MUST(cudaHostGetDevicePointer(&device, data, 0));
        for (size_t i = 0; i < count; i++) data[i] = (unsigned)i;
        run(device, count, 7);
        MUST(cudaDeviceSynchronize());
        say("simple", "%zu %llx", count, mixed(data, count));
        data[count / 2] = 5;
        run(data, count, 1);
        MUST(cudaDeviceSynchronize());
        say("again", "%zu %u %llx", count, data[count / 2], mixed(data, count));
        MUST(cudaFreeHost(data));
    }
}

// The kernel is given the address of a table in device memory; the rows are known from the table alone.
static void pointers() {
    Table table = {};
    table.rows = 16;
    for (size_t r = 0; r < table.rows; r++) {
        table.count[r] = 20000 + 1000 * r;
        table.row[r] = words(table.count[r]);
        for (size_t i = 0; i < table.count[r]; i++) table.row[r][i] = (unsigned)(r * 100000 + i);
    }
    Table *device;
    MUST(cudaMalloc(&device, sizeof table));
    MUST(cudaMemcpy(device, &table, sizeof table, cudaMemcpyHostToDevice));
    for (unsigned by : {3u, 5u}) {
        add_to_rows<<<8, 128>>>(device, by);
        MUST(cudaDeviceSynchronize());
        for (size_t r = 0; r < table.rows; r += 5) say("row", "%zu %llx", r, mixed(table.row[r], table.count[r]));
        table.row[3][7] = 1;
    }
    for (size_t r = 0; r < table.rows; r++) MUST(cudaFreeHost(table.row[r]));
    MUST(cudaFree(device));
}

static void graph() {
    size_t count = 1 << 18;
    unsigned *data = words(count);
    for (size_t i = 0; i < count; i++) data[i] = (unsigned)i;
    cudaStream_t stream;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    run(data, count, 1, stream);
    run(data + count / 2, count / 2, 2, stream);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    for (unsigned turn = 0; turn < 3; turn++) {
        data[turn] = 1000 + turn;
        MUST(cudaGraphLaunch(exec, stream));
        MUST(cudaStreamSynchronize(stream));
        say("graph", "%u %llx", data[turn], mixed(data, count));
    }
    MUST(cudaFreeHost(data));
}

static void copies() {
    size_t count = 1 << 18;
    unsigned *data = words(count), *device;
    MUST(cudaMalloc(&device, count * 4));
    for (size_t i = 0; i < count; i++) data[i] = (unsigned)i * 7;
    cudaStream_t stream;
    MUST(cudaStreamCreate(&stream));
    MUST(cudaMemcpyAsync(device, data, count * 4, cudaMemcpyHostToDevice, stream));
    run(device, count, 3, stream);
    MUST(cudaMemcpyAsync(data, device, count * 4, cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
    say("copies", "%llx", mixed(data, count));
    std::vector<unsigned> other(count);
    MUST(cudaMemcpy(other.data(), data, count * 4, cudaMemcpyDefault));
    say("to-host", "%llx", mixed(other.data(), count));
    MUST(cudaMemset(data, 0x11, 4096));
    MUST(cudaDeviceSynchronize());
    say("set", "%x %llx", data[0], mixed(data, count));
    MUST(cudaFree(device));
    MUST(cudaFreeHost(data));
}

static void described() {
    unsigned *data = words(1 << 18);
    cudaPointerAttributes what;
    MUST(cudaPointerGetAttributes(&what, data + 5));
    say("type", "%d %d %d", (int)what.type, what.hostPointer == data + 5, what.devicePointer == data + 5);
    unsigned flags = 0;
    MUST(cudaHostGetFlags(&flags, data));
    say("flags", "%u", flags & cudaHostAllocMapped);
    TELL("free-as-device", cudaFree(data));
    cudaGetLastError();
    int ends[2];
    char text[] = "written by a system call";
    if (pipe(ends) || write(ends[1], text, sizeof text) != sizeof text) exit(1);
    ssize_t got = read(ends[0], data, sizeof text);
    say("read", "%zd %s", got, reinterpret_cast<char *>(data));
    MUST(cudaFreeHost(data));
    TELL("free-twice", cudaFreeHost(data));
    cudaGetLastError();
}

// mapped [the most words at once]: GPUs in software are slow.
int main(int argc, char **argv) {
    simple(argc > 1 ? strtoull(argv[1], nullptr, 10) : ~0ull);
    pointers();
    graph();
    copies();
    described();
}
