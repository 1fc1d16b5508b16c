// The source of kernels.ptx: nvcc -ptx -arch=compute_80 -std=c++17 kernels.cu (nvcc 13.4).
#include <assert.h>
#include <cooperative_groups.h>
#include <stdio.h>

extern "C" { __device__ int counter = 5;
__constant__ int factor = 3; }
__device__ int *where = &counter;

extern "C" __global__ void add(const int *a, const int *b, int *out, long n) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] + b[i] * factor;
}

// Waits for a word, then says so.
extern "C" __global__ void wait_for(volatile int *flag, int value, volatile int *done) {
    while (*flag != value) {}
    __threadfence();
    *done = value;
}

extern "C" __global__ void forever(volatile int *alive) {
    while (true) *alive = 1;
}

extern "C" __global__ void poke(int *address, int value) { *address = value; }
extern "C" __global__ void peek(const int *address, int *out) { *out = *address; }

extern "C" __global__ void count() { atomicAdd(where, 1); }

extern "C" __global__ void say(int value) { printf("thread %d says %d and %s\n", threadIdx.x, value, "text"); }

extern "C" __global__ void check(int limit) { assert(threadIdx.x < limit); }

extern "C" __global__ void heap(int *out, int bytes) {
    int *memory = (int *)malloc(bytes);
    if (!memory) { out[threadIdx.x] = -1; return; }
    *memory = threadIdx.x * 2;
    out[threadIdx.x] = *memory;
    free(memory);
}

// Every block adds up what all blocks wrote before the grid's barrier.
extern "C" __global__ void meet(int *values, int *sums) {
    cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    if (threadIdx.x == 0) values[blockIdx.x] = blockIdx.x + 1;
    grid.sync();
    int sum = 0;
    for (int i = 0; i < gridDim.x; i++) sum += ((volatile int *)values)[i];
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

extern "C" __global__ void dynamic(int *out) {
    extern __shared__ int shared[];
    shared[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

// Offsets of textures are not executed: this one is refused, its neighbours run.
extern "C" __global__ void texture(unsigned long long object, float *out) {
    float value;
    asm volatile("tex.1d.v4.f32.f32 {%0, _, _, _}, [%1, {%2}], {1};" : "=f"(value) : "l"(object), "f"(0.0f));
    *out = value;
}
