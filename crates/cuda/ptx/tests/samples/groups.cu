// Cooperative groups, barriers in shared memory, asynchronous copies, 8-bit floats, 128-bit integers.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cuda/barrier>
#include <cuda_fp8.h>
namespace cg = cooperative_groups;

extern "C" __global__ void fp8(const float *x, float *o) {
  __nv_fp8_e4m3 a(x[threadIdx.x]);
  __nv_fp8_e5m2 b(x[threadIdx.x]);
  o[threadIdx.x * 2] = float(a);
  o[threadIdx.x * 2 + 1] = float(b);
}

extern "C" __global__ void phases(int *o) {
  __shared__ cuda::barrier<cuda::thread_scope_block> b;
  __shared__ int turn[256];
  if (threadIdx.x == 0) init(&b, blockDim.x);
  __syncthreads();
  int value = threadIdx.x;
  for (int i = 0; i < 5; i++) {
    turn[threadIdx.x] = value;
    b.arrive_and_wait();
    value += turn[(threadIdx.x + 1) % blockDim.x];
    auto token = b.arrive();
    b.wait(std::move(token));
  }
  o[threadIdx.x] = value;
}

extern "C" __global__ void tiles(int *o) {
  auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  int r = cg::reduce(tile, (int)threadIdx.x, cg::plus<int>());
  if (threadIdx.x % 3 == 0) {
    auto some = cg::coalesced_threads();
    r += 1000 * some.thread_rank() + 100000 * cg::reduce(some, 1, cg::plus<int>());
  }
  o[threadIdx.x] = r;
}

extern "C" __global__ void labels(int *o) {
  auto l = cg::labeled_partition(cg::coalesced_threads(), threadIdx.x % 5);
  o[threadIdx.x] = l.size();
}

extern "C" __global__ void staged(const int *g, int *o) {
  __shared__ int s[128];
  auto b = cg::this_thread_block();
  cg::memcpy_async(b, s, g, sizeof(s));
  cg::wait(b);
  o[threadIdx.x] = s[127 - threadIdx.x];
}

extern "C" __global__ void wide(__int128 *a, const __int128 *b) {
  a[0] = a[0] * b[0];
  a[1] = a[1] / b[1];
  a[2] = a[2] % b[2];
  a[3] = a[3] + b[3];
}
