// nvcc -ptx -rdc=true -arch=compute_80 callee.cu
__device__ int twice(int value) { return value * 2; }
