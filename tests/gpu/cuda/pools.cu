// Stream-ordered allocation: cudaMallocAsync from default and own pools, reuse across streams, attributes, trimming, running out.
#include "say.h"

__global__ void fill(int *data, int n, int value) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) data[i] = value + i;
}

__global__ void add(const int *from, int *to, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) to[i] += from[i];
}

int main() {
    const int n = 1 << 20;
    cudaStream_t first, second;
    MUST(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    MUST(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    int supported;
    MUST(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, 0));
    say("supported", "%d", supported);

    // Many allocations that live a moment, handed from stream to stream.
    int *sum;
    MUST(cudaMalloc(&sum, n * sizeof(int)));
    MUST(cudaMemset(sum, 0, n * sizeof(int)));
    cudaEvent_t done;
    MUST(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    for (int round = 0; round < 50; round++) {
        int *part;
        MUST(cudaMallocAsync(&part, n * sizeof(int), first));
        fill<<<64, 256, 0, first>>>(part, n, round);
        MUST(cudaEventRecord(done, first));
        MUST(cudaStreamWaitEvent(second, done));
        add<<<64, 256, 0, second>>>(part, sum, n);
        MUST(cudaFreeAsync(part, second));
    }
    MUST(cudaStreamSynchronize(second));
    int *host = (int *)malloc(n * sizeof(int));
    MUST(cudaMemcpy(host, sum, n * sizeof(int), cudaMemcpyDeviceToHost));
    say("sum", "%llx", mixed(host, n));

    cudaMemPool_t pool;
    MUST(cudaDeviceGetDefaultMemPool(&pool, 0));
    unsigned long long threshold = 64 << 20, used = 1;
    MUST(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    threshold = 0;
    MUST(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    MUST(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
    say("threshold", "%llu used %llu", threshold, used);
    TELL("trim", cudaMemPoolTrimTo(pool, 0));

    cudaMemPoolProps props = {};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    cudaMemPool_t own;
    TELL("create", cudaMemPoolCreate(&own, &props));
    int *data;
    TELL("from-own-pool", cudaMallocFromPoolAsync(&data, n * sizeof(int), own, first));
    fill<<<64, 256, 0, first>>>(data, n, 5);
    MUST(cudaMemcpyAsync(host, data, n * sizeof(int), cudaMemcpyDeviceToHost, first));
    MUST(cudaStreamSynchronize(first));
    say("own", "%llx", mixed(host, n));
    TELL("free", cudaFreeAsync(data, first));
    TELL("destroy", cudaMemPoolDestroy(own));
    TELL("too-much", cudaMallocAsync(&data, 1ull << 45, first));
    say("cleared", "%s", cudaGetErrorName(cudaGetLastError()));
    MUST(cudaDeviceSynchronize());
    return 0;
}
