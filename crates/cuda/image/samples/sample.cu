// The source of every image in this folder; make-samples.sh makes them again.
extern "C" __constant__ int bias = 7;

extern "C" __global__ void scale(float *data, float factor, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) data[i] = data[i] * factor + bias;
}

// Long enough in text that every compression mode finds something to compress.
extern "C" __global__ void reduce(const float *in, float *out, int count) {
    __shared__ float part[256];
    int t = threadIdx.x;
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + t; i < count; i += gridDim.x * blockDim.x) sum += in[i];
    part[t] = sum;
    __syncthreads();
    for (int s = 128; s > 0; s >>= 1) {
        if (t < s) part[t] += part[t + s];
        __syncthreads();
    }
    if (t == 0) atomicAdd(out, part[0]);
}
