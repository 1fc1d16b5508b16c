// nvcc -ptx -rdc=true -arch=compute_80 caller.cu
extern __device__ int twice(int value);
extern "C" __global__ void call(int *out, int value) { *out = twice(value); }
