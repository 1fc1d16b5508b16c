// Functions of the math library, in double, single and half precision.
#include <cuda_fp16.h>
#include <cuda_bf16.h>

extern "C" __global__ void doubles(const double *x, double *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  double v = x[i];
  double *o = out + i * 10;
  o[0] = sin(v); o[1] = cos(v); o[2] = exp(v * 0.1); o[3] = log(fabs(v) + 0.1); o[4] = pow(fabs(v) + 0.5, 1.7);
  o[5] = erf(v); o[6] = tanh(v); o[7] = cbrt(v); o[8] = fmod(v, 0.7); o[9] = lgamma(fabs(v) + 0.5);
}

extern "C" __global__ void singles(const float *x, float *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v = x[i];
  float *o = out + i * 10;
  o[0] = sinf(v); o[1] = cosf(v); o[2] = expf(v * 0.1f); o[3] = logf(fabsf(v) + 0.1f); o[4] = powf(fabsf(v) + 0.5f, 1.7f);
  o[5] = erff(v); o[6] = tanhf(v); o[7] = sqrtf(fabsf(v)); o[8] = 1.0f / (v + 100.0f); o[9] = rintf(v);
}

extern "C" __global__ void halves(const __half *a, const __half *b, __half *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  __half *o = out + i * 6;
  o[0] = __hadd(a[i], b[i]); o[1] = __hmul(a[i], b[i]); o[2] = __hfma(a[i], b[i], a[i]);
  o[3] = __hmin(a[i], b[i]); o[4] = __hdiv(a[i], b[i]); o[5] = __float2half(__half2float(a[i]) * 1.1f);
}

extern "C" __global__ void brains(const __nv_bfloat16 *a, const __nv_bfloat16 *b, __nv_bfloat16 *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  __nv_bfloat16 *o = out + i * 3;
  o[0] = __hadd(a[i], b[i]); o[1] = __hmul(a[i], b[i]); o[2] = __hfma(a[i], b[i], a[i]);
}
