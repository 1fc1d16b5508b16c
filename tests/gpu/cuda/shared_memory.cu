// Dynamic shared memory up to the limit, what occupancy says about it, and attributes of functions.
#include "say.h"

extern __shared__ unsigned char memory[];

__global__ void use_all(unsigned long long *out, int bytes) {
    for (int i = threadIdx.x; i < bytes; i += blockDim.x) memory[i] = (unsigned char)(i * 31 + blockIdx.x);
    __syncthreads();
    unsigned long long total = 0;
    for (int i = threadIdx.x; i < bytes; i += blockDim.x) total += memory[bytes - 1 - i] * (unsigned long long)(i + 1);
    atomicAdd(&out[blockIdx.x], total);
}

int main() {
    int limit, ordinary;
    MUST(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    MUST(cudaDeviceGetAttribute(&ordinary, cudaDevAttrMaxSharedMemoryPerBlock, 0));
    say("limits", "%d %d", ordinary, limit);
    unsigned long long *out, found[8];
    MUST(cudaMalloc(&out, sizeof found));
    for (int bytes : {1024, ordinary, limit}) {
        char key[64];
        MUST(cudaMemset(out, 0, sizeof found));
        if (bytes > ordinary) {
            use_all<<<8, 256, bytes>>>(out, bytes);
            TELL("without-asking", cudaGetLastError());
            TELL("ask", cudaFuncSetAttribute(use_all, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
        }
        use_all<<<8, 256, bytes>>>(out, bytes);
        MUST(cudaGetLastError());
        MUST(cudaMemcpy(found, out, sizeof found, cudaMemcpyDeviceToHost));
        snprintf(key, sizeof key, "used-%d", bytes);
        say(key, "%llx", mixed(found, 8));
        int blocks;
        MUST(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, use_all, 256, bytes));
        snprintf(key, sizeof key, "occupancy-%d", bytes);
        say(key, "%d", blocks);
    }
    TELL("ask-too-much", cudaFuncSetAttribute(use_all, cudaFuncAttributeMaxDynamicSharedMemorySize, limit + 1));
    cudaGetLastError();
    cudaFuncAttributes attributes;
    MUST(cudaFuncGetAttributes(&attributes, use_all));
    say("attributes", "static %zu constant %zu local %zu threads %d registers %d binary %d", attributes.sharedSizeBytes,
        attributes.constSizeBytes, attributes.localSizeBytes, attributes.maxThreadsPerBlock, attributes.numRegs, attributes.binaryVersion);
    int grid, block;
    MUST(cudaOccupancyMaxPotentialBlockSize(&grid, &block, use_all, 4096, 0));
    say("potential", "%d %d", grid, block);
    return 0;
}
