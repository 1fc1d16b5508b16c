// A device assertion is reported with its place, and poisons the context as on a real device.
#include "check.h"

#include <cassert>

__global__ void check_below(int limit) { assert(int(threadIdx.x) < limit && "thread too high"); }

int main() {
    check_below<<<1, 32>>>(32);
    CUDA(cudaDeviceSynchronize());
    check_below<<<1, 32>>>(31);
    cudaError_t status = cudaDeviceSynchronize();
    EXPECT(status == cudaErrorAssert, "the assertion gave %d (%s)", status, cudaGetErrorName(status));
    void *memory;
    status = cudaMalloc(&memory, 16);
    EXPECT(status == cudaErrorAssert, "after the assertion cudaMalloc gave %d", status);
    std::puts("ok");
    return 0;
}
