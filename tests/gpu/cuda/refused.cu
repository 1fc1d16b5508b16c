// What remote GPUs are known to refuse: mapped memory.
// Natively all of it works; the remote answer must be an honest error, never a wrong result.
#include "say.h"

__global__ void increment(int *data) { data[threadIdx.x] += threadIdx.x; }

static void mapped() {
    int *host = nullptr, *device = nullptr;
    cudaError_t made = cudaHostAlloc(&host, 64 * sizeof(int), cudaHostAllocMapped);
    TELL("mapped-allocation", made);
    cudaError_t seen = made == cudaSuccess ? cudaHostGetDevicePointer(&device, host, 0) : made;
    if (seen != cudaSuccess) {
        TELL("mapped", seen);
        cudaGetLastError();
        return;
    }
    for (int i = 0; i < 64; i++) host[i] = 10 * i;
    increment<<<1, 64>>>(device);
    cudaError_t done = cudaDeviceSynchronize();
    if (done == cudaSuccess) {
        say("mapped", "%llx", mixed(host, 64));
    } else {
        TELL("mapped", done);
    }
}

int main() {
    mapped();
    return 0;
}
