// A program that does not look whether its kernels were launched, as many do not: what it copies back tells.
#include <cstdio>

__global__ void fill(int *out) { out[threadIdx.x] = threadIdx.x + 1; }

int main() {
    int *device, host[32] = {};
    cudaMalloc(&device, sizeof host);
    fill<<<1, 32>>>(device);
    // The runtime keeps the error of a launch until somebody asks; to ask clears it, and this one does not care.
    cudaGetLastError();
    cudaError_t copied = cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost);
    if (copied != cudaSuccess) {
        std::puts(cudaGetErrorName(copied));
        return 3;
    }
    std::puts(host[31] == 32 ? "ok" : "wrong results");
    return host[31] == 32 ? 0 : 1;
}
