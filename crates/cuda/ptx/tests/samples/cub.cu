// Block-wide algorithms of CUB.
#include <cub/cub.cuh>
extern "C" __global__ void breduce(const int *in, int *out) {
  typedef cub::BlockReduce<int, 128> R; __shared__ typename R::TempStorage t;
  int s = R(t).Sum(in[blockIdx.x*128+threadIdx.x]); if (threadIdx.x==0) out[blockIdx.x]=s;
}
extern "C" __global__ void bscan(const int *in, int *out) {
  typedef cub::BlockScan<int, 128> R; __shared__ typename R::TempStorage t;
  int s; R(t).ExclusiveSum(in[threadIdx.x], s); out[threadIdx.x]=s;
}
extern "C" __global__ void bsort(const int *in, int *out) {
  typedef cub::BlockRadixSort<int, 128, 4> R; __shared__ typename R::TempStorage t;
  int k[4]; for (int i=0;i<4;i++) k[i]=in[threadIdx.x*4+i];
  R(t).Sort(k); for (int i=0;i<4;i++) out[threadIdx.x*4+i]=k[i];
}
extern "C" __global__ void wred(const float *in, float *out) {
  typedef cub::WarpReduce<float> R; __shared__ typename R::TempStorage t[4];
  float s = R(t[threadIdx.x/32]).Reduce(in[threadIdx.x], cuda::maximum<>{}); if (threadIdx.x%32==0) out[threadIdx.x/32]=s;
}
