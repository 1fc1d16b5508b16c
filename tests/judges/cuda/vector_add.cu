// Adds two vectors, with a ragged last block.
#include "check.h"

__global__ void add(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

int main() {
    const int n = 100003;
    Numbers numbers;
    std::vector<float> a(n), b(n);
    for (int i = 0; i < n; i++) a[i] = numbers.unit(), b[i] = numbers.unit();
    Device<float> da(a), db(b), dc(n);
    add<<<(n + 255) / 256, 256>>>(da.data, db.data, dc.data, n);
    CUDA(cudaGetLastError());
    auto c = dc.host();
    for (int i = 0; i < n; i++) EXPECT(c[i] == a[i] + b[i], "element %d is %g", i, c[i]);
    return done();
}
