// Symbols: constants and device variables, written and read by name, by address and by kernels; copies with offsets.
#include "say.h"

__constant__ float weights[16];
__device__ int counter = 7;
__device__ double table[64];
__device__ unsigned char flags[1 << 20];

__global__ void use(float *out) {
    int i = threadIdx.x;
    out[i] = weights[i % 16] * i;
    table[i] = weights[i % 16] + i;
    if (i < 5) atomicAdd(&counter, i);
}

int main() {
    float host[16], out[64];
    for (int i = 0; i < 16; i++) host[i] = 0.5f * i;
    MUST(cudaMemcpyToSymbol(weights, host, sizeof host));
    MUST(cudaMemcpyToSymbol(weights, &host[3], sizeof(float), 2 * sizeof(float)));
    float *device;
    MUST(cudaMalloc(&device, sizeof out));
    use<<<1, 64>>>(device);
    MUST(cudaMemcpy(out, device, sizeof out, cudaMemcpyDeviceToHost));
    say("out", "%llx", mixed(out, 64));
    int found;
    MUST(cudaMemcpyFromSymbol(&found, counter, sizeof found));
    say("counter", "%d", found);
    double back[64];
    MUST(cudaMemcpyFromSymbolAsync(back, table, sizeof back, 0, cudaMemcpyDeviceToHost, cudaStreamPerThread));
    MUST(cudaStreamSynchronize(cudaStreamPerThread));
    say("table", "%llx", mixed(back, 64));

    void *address;
    size_t size;
    MUST(cudaGetSymbolAddress(&address, flags));
    MUST(cudaGetSymbolSize(&size, flags));
    say("flags-size", "%zu", size);
    MUST(cudaMemset(address, 3, size));
    MUST(cudaMemset2D(address, 1024, 9, 100, 1000));
    unsigned char *all = (unsigned char *)malloc(size);
    MUST(cudaMemcpyFromSymbol(all, flags, size));
    say("flags", "%llx", mixed(all, size));
    TELL("past-the-end", cudaMemcpyToSymbol(weights, host, sizeof host, 8));
    TELL("no-symbol", cudaGetSymbolAddress(&address, host));
    cudaPointerAttributes attributes;
    MUST(cudaGetSymbolAddress(&address, table));
    MUST(cudaPointerGetAttributes(&attributes, address));
    say("kind-of-pointer", "%d device %d", (int)attributes.type, attributes.device);
    return 0;
}
