// A wild pointer gives the right error, which sticks, and the process still ends cleanly.
#include "check.h"

__global__ void poke(int *where) { *where = 1; }

int main() {
    int *good;
    CUDA(cudaMalloc(&good, 64));
    poke<<<1, 1>>>(good);
    CUDA(cudaDeviceSynchronize());
    poke<<<1, 1>>>((int *)0x10);
    cudaError_t status = cudaDeviceSynchronize();
    EXPECT(status == cudaErrorIllegalAddress, "a wild write gave %d (%s)", status, cudaGetErrorName(status));
    int value;
    status = cudaMemcpy(&value, good, sizeof value, cudaMemcpyDeviceToHost);
    EXPECT(status == cudaErrorIllegalAddress, "a copy after it gave %d", status);
    std::puts("ok");
    return 0;
}
