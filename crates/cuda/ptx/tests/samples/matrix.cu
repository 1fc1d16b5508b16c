// A 16x8x16 product on the matrix unit, its operands loaded with ldmatrix.
#include <cuda_fp16.h>
#include <cstdint>
extern "C" __global__ void product(const __half *a, const __half *b, float *c) {
  __shared__ __align__(16) __half as[16 * 16], bs[16 * 8];
  int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) as[i] = a[i];
  for (int i = lane; i < 128; i += 32) bs[i] = b[i];
  __syncwarp();
  uint32_t ra[4], rb[2];
  uint32_t pa = (uint32_t)__cvta_generic_to_shared(as + (lane % 16) * 16 + (lane / 16) * 8);
  uint32_t pb = (uint32_t)__cvta_generic_to_shared(bs + (lane % 16) * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3]) : "r"(pa));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(rb[0]), "=r"(rb[1]) : "r"(pb));
  float d[4] = {1, 1, 1, 1};
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
  int g = lane / 4, t = lane % 4;
  c[g * 8 + t * 2] = d[0];
  c[g * 8 + t * 2 + 1] = d[1];
  c[(g + 8) * 8 + t * 2] = d[2];
  c[(g + 8) * 8 + t * 2 + 1] = d[3];
}
