// A matrix product in tiles of shared memory, static and dynamic, against the same sum on the CPU.
#include "check.h"

template <int TILE>
__global__ void product(const float *a, const float *b, float *c, int n) {
    __shared__ float ta[TILE][TILE], tb[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int t = 0; t < n; t += TILE) {
        ta[threadIdx.y][threadIdx.x] = row < n && t + threadIdx.x < n ? a[row * n + t + threadIdx.x] : 0;
        tb[threadIdx.y][threadIdx.x] = column < n && t + threadIdx.y < n ? b[(t + threadIdx.y) * n + column] : 0;
        __syncthreads();
        for (int k = 0; k < TILE; k++) sum += ta[threadIdx.y][k] * tb[k][threadIdx.x];
        __syncthreads();
    }
    if (row < n && column < n) c[row * n + column] = sum;
}

__global__ void reverse(int *data, int n) {
    extern __shared__ int mirror[];
    mirror[n - 1 - threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    data[threadIdx.x] = mirror[threadIdx.x];
}

template <int TILE>
void check_product(int n) {
    Numbers numbers;
    std::vector<float> a(n * n), b(n * n);
    for (auto &x : a) x = numbers.unit() - 0.5f;
    for (auto &x : b) x = numbers.unit() - 0.5f;
    Device<float> da(a), db(b), dc(n * n);
    dim3 grid((n + TILE - 1) / TILE, (n + TILE - 1) / TILE);
    product<TILE><<<grid, dim3(TILE, TILE)>>>(da.data, db.data, dc.data, n);
    auto c = dc.host();
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int k = 0; k < n; k++) sum += double(a[i * n + k]) * b[k * n + j];
            EXPECT(std::fabs(c[i * n + j] - sum) < 1e-4, "n=%d (%d,%d) is %g, not %g", n, i, j, c[i * n + j], sum);
        }
}

int main() {
    check_product<16>(64);
    check_product<16>(45);
    check_product<8>(33);

    const int n = 1000;
    std::vector<int> data(n);
    for (int i = 0; i < n; i++) data[i] = i;
    Device<int> device(data);
    reverse<<<1, n, n * sizeof(int)>>>(device.data, n);
    auto back = device.host();
    for (int i = 0; i < n; i++) EXPECT(back[i] == n - 1 - i, "element %d is %d", i, back[i]);

    // More dynamic shared memory than the default must be asked for first.
    const int large = 60 * 1024;
    reverse<<<1, n, large>>>(device.data, n);
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue, "a launch with 60 KiB was let through unasked");
    CUDA(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, large));
    reverse<<<1, n, large>>>(device.data, n);
    CUDA(cudaGetLastError());
    back = device.host();
    for (int i = 0; i < n; i++) EXPECT(back[i] == i, "element %d is %d after the second turn", i, back[i]);
    return done();
}
