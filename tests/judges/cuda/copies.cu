// Copies with pitches, in three dimensions, between device areas, to symbols, and of every kind of memory.
#include "check.h"

#include <cstring>

__global__ void bump(int *row, int n) {
    if (threadIdx.x < n) row[threadIdx.x] += 1;
}

int main() {
    const int width = 37, height = 19;
    std::vector<int> host(width * height), back(width * height, -1);
    for (size_t i = 0; i < host.size(); i++) host[i] = int(i);
    int *pitched;
    size_t pitch;
    CUDA(cudaMallocPitch(&pitched, &pitch, width * sizeof(int), height));
    EXPECT(pitch >= width * sizeof(int) && pitch % 32 == 0, "pitch %zu", pitch);
    CUDA(cudaMemset2D(pitched, pitch, 0xff, width * sizeof(int), height));
    CUDA(cudaMemcpy2D(pitched, pitch, host.data(), width * 4, width * 4, height, cudaMemcpyHostToDevice));
    for (int row = 0; row < height; row++) bump<<<1, 64>>>((int *)((char *)pitched + row * pitch), width);
    CUDA(cudaMemcpy2D(back.data(), width * 4, pitched, pitch, width * 4, height, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < host.size(); i++) EXPECT(back[i] == host[i] + 1, "2D element %zu is %d", i, back[i]);

    // A window of the middle: rows 3..8, columns 5..15.
    std::vector<int> window(5 * 10);
    CUDA(cudaMemcpy2D(window.data(), 40, (char *)pitched + 3 * pitch + 5 * 4, pitch, 40, 5, cudaMemcpyDeviceToHost));
    for (int y = 0; y < 5; y++)
        for (int x = 0; x < 10; x++) EXPECT(window[y * 10 + x] == (y + 3) * width + x + 5 + 1, "window %d %d", x, y);
    EXPECT(cudaMemcpy2D(window.data(), 39, pitched, pitch, 40, 5, cudaMemcpyDeviceToHost) == cudaErrorInvalidPitchValue, "a narrow pitch passed");
    cudaGetLastError();

    // A volume, and a smaller box cut from it.
    const int depth = 6;
    cudaExtent extent = make_cudaExtent(width * 4, height, depth);
    cudaPitchedPtr volume;
    CUDA(cudaMalloc3D(&volume, extent));
    std::vector<int> cube(width * height * depth), cut(4 * 3 * 2);
    for (size_t i = 0; i < cube.size(); i++) cube[i] = int(i) * 7;
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(cube.data(), width * 4, width, height);
    copy.dstPtr = volume;
    copy.extent = extent;
    copy.kind = cudaMemcpyHostToDevice;
    CUDA(cudaMemcpy3D(&copy));
    cudaMemcpy3DParms slice = {};
    slice.srcPtr = volume;
    slice.srcPos = make_cudaPos(5 * 4, 4, 3);
    slice.dstPtr = make_cudaPitchedPtr(cut.data(), 16, 4, 3);
    slice.extent = make_cudaExtent(16, 3, 2);
    slice.kind = cudaMemcpyDeviceToHost;
    CUDA(cudaMemcpy3D(&slice));
    for (int z = 0; z < 2; z++)
        for (int y = 0; y < 3; y++)
            for (int x = 0; x < 4; x++)
                EXPECT(cut[(z * 3 + y) * 4 + x] == (((z + 3) * height + y + 4) * width + x + 5) * 7, "box %d %d %d", x, y, z);

    // Large, so that it does not fit in one message; to a second device area and back; then through mapped memory.
    const size_t large = 33 << 20;
    std::vector<char> out(large), in(large);
    for (size_t i = 0; i < large; i++) out[i] = char(i * 2654435761u >> 13);
    char *a, *b;
    CUDA(cudaMalloc(&a, large));
    CUDA(cudaMalloc(&b, large));
    CUDA(cudaMemcpy(a, out.data(), large, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(b, a, large, cudaMemcpyDeviceToDevice));
    CUDA(cudaMemset(a, 0, large));
    CUDA(cudaMemcpy(in.data(), b, large, cudaMemcpyDefault));
    EXPECT(in == out, "the large copy differs");

    int *pinned;
    CUDA(cudaHostAlloc(&pinned, 256, cudaHostAllocDefault));
    std::memset(pinned, 0, 256);
    cudaPointerAttributes attributes;
    CUDA(cudaPointerGetAttributes(&attributes, pinned));
    EXPECT(attributes.type == cudaMemoryTypeHost, "pinned memory is type %d", attributes.type);
    CUDA(cudaPointerGetAttributes(&attributes, a + 100));
    EXPECT(attributes.type == cudaMemoryTypeDevice && attributes.device == 0, "device memory is type %d", attributes.type);
    CUDA(cudaPointerGetAttributes(&attributes, out.data()));
    EXPECT(attributes.type == cudaMemoryTypeUnregistered, "plain memory is type %d", attributes.type);
    // Kernels reach pinned memory only on devices that say so; on others the host address means nothing to them.
    cudaDeviceProp device;
    CUDA(cudaGetDeviceProperties(&device, 0));
    if (device.canMapHostMemory) {
        bump<<<1, 64>>>(pinned, 64);
        CUDA(cudaDeviceSynchronize());
        for (int i = 0; i < 64; i++) EXPECT(pinned[i] == 1, "a kernel's write to pinned memory: element %d is %d", i, pinned[i]);
    } else {
        void *mapped;
        EXPECT(cudaHostGetDevicePointer(&mapped, pinned, 0) != cudaSuccess, "pinned memory has a device address after all");
        cudaGetLastError();
    }
    CUDA(cudaFreeHost(pinned));

    // The GPU has other programs: one that begins at this moment takes memory of its own. They do not do so five times.
    size_t free_before = 0, free_after = 0, total;
    for (int turn = 0; turn < 5 && free_after < free_before + 2 * large; turn++) {
        if (turn > 0) CUDA(cudaMalloc(&a, large));
        if (turn > 0) CUDA(cudaMalloc(&b, large));
        CUDA(cudaMemGetInfo(&free_before, &total));
        CUDA(cudaFree(a));
        CUDA(cudaFree(b));
        CUDA(cudaMemGetInfo(&free_after, &total));
    }
    EXPECT(free_after >= free_before + 2 * large, "freeing gave back %zu", free_after - free_before);
    void *impossible;
    EXPECT(cudaMalloc(&impossible, size_t(1) << 50) == cudaErrorMemoryAllocation, "a petabyte was allocated");
    cudaGetLastError();
    CUDA(cudaFree(pitched));
    CUDA(cudaFree(volume.ptr));
    return done();
}
