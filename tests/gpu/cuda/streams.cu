// Streams and events: copies of all kinds in flight at once, host functions, callbacks, priorities, per-thread streams, legacy order.
#include <thread>
#include <vector>

#include "say.h"

__global__ void mix(unsigned *data, int n, unsigned by) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) data[i] = data[i] * 2654435761u + by;
}

static void count(void *where) { ++*(int *)where; }
static void CUDART_CB callback(cudaStream_t, cudaError_t status, void *where) { *(int *)where += status == cudaSuccess ? 100 : -1000; }

static const int n = 1 << 20;

static unsigned long long lane(unsigned seed) {
    cudaStream_t stream;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    unsigned *pinned, *device;
    std::vector<unsigned> pageable(n);
    MUST(cudaMallocHost(&pinned, n * sizeof(unsigned)));
    MUST(cudaMalloc(&device, n * sizeof(unsigned)));
    for (int i = 0; i < n; i++) pinned[i] = i ^ seed;
    for (unsigned round = 0; round < 10; round++) {
        MUST(cudaMemcpyAsync(device, pinned, n * sizeof(unsigned), cudaMemcpyHostToDevice, stream));
        mix<<<100, 256, 0, stream>>>(device, n, round);
        MUST(cudaMemcpyAsync(pageable.data(), device, n * sizeof(unsigned), cudaMemcpyDeviceToHost, stream));
        MUST(cudaMemcpy2DAsync(device, 4096, pageable.data(), 2048, 2048, 512, cudaMemcpyHostToDevice, stream));
        mix<<<100, 256, 0, stream>>>(device, n, seed);
        MUST(cudaMemcpyAsync(pinned, device, n * sizeof(unsigned), cudaMemcpyDeviceToHost, stream));
        MUST(cudaStreamSynchronize(stream));
    }
    unsigned long long found = mixed(pinned, n);
    MUST(cudaFreeHost(pinned));
    MUST(cudaFree(device));
    MUST(cudaStreamDestroy(stream));
    return found;
}

int main() {
    std::vector<unsigned long long> found(8);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 8; t++) threads.emplace_back([&found, t] { found[t] = lane(t); });
    for (auto &thread : threads) thread.join();
    say("eight-threads", "%llx", mixed(found.data(), found.size()));

    cudaStream_t stream;
    int low, high, counted = 0;
    MUST(cudaDeviceGetStreamPriorityRange(&low, &high));
    say("priorities", "%d %d", low, high);
    MUST(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, high));
    unsigned *data;
    MUST(cudaMalloc(&data, n * sizeof(unsigned)));
    for (int i = 0; i < 20; i++) {
        mix<<<10, 256, 0, stream>>>(data, n, i);
        MUST(cudaLaunchHostFunc(stream, count, &counted));
    }
    MUST(cudaStreamAddCallback(stream, callback, &counted, 0));
    MUST(cudaStreamSynchronize(stream));
    say("counted", "%d", counted);

    // The legacy stream waits for blocking streams and they for it.
    cudaStream_t blocking;
    MUST(cudaStreamCreate(&blocking));
    unsigned *other, back[4];
    MUST(cudaMalloc(&other, n * sizeof(unsigned)));
    for (int i = 0; i < 100; i++) {
        MUST(cudaMemsetAsync(other, i, n * sizeof(unsigned), blocking));
        MUST(cudaMemcpyAsync(data, other, n * sizeof(unsigned), cudaMemcpyDeviceToDevice, 0));
        MUST(cudaMemcpyAsync(back, data + n - 4, sizeof back, cudaMemcpyDeviceToHost, blocking));
        MUST(cudaStreamSynchronize(blocking));
        if (back[3] != i * 0x01010101u) {
            say("legacy-order", "wrong at %d", i);
            return 1;
        }
    }
    say("legacy-order", "kept");

    cudaEvent_t start, end;
    MUST(cudaEventCreate(&start));
    MUST(cudaEventCreate(&end));
    MUST(cudaEventRecord(start, stream));
    for (int i = 0; i < 100; i++) mix<<<10, 256, 0, stream>>>(data, n, i);
    MUST(cudaEventRecord(end, stream));
    TELL("not-ready", cudaEventQuery(end) == cudaErrorNotReady || cudaEventQuery(end) == cudaSuccess ? cudaSuccess : cudaErrorUnknown);
    MUST(cudaEventSynchronize(end));
    float ms = -1;
    MUST(cudaEventElapsedTime(&ms, start, end));
    say("elapsed-is-plausible", "%d", ms > 0.05f && ms < 5000);
    printf(". elapsed-ms %f\n", ms);
    return 0;
}
