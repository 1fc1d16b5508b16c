// Templates, lambdas, virtual functions, function pointers, recursion and constant memory.
#include "check.h"

__constant__ float coefficients[4];
__constant__ int table[256];
__device__ int counter = 5;
__device__ float grown[3] = {1.5f, -2.5f, 8.0f};

template <typename T, int N>
struct Polynomial {
    T c[N];
    __host__ __device__ T operator()(T x) const {
        T y = 0;
        for (int i = N - 1; i >= 0; i--) y = y * x + c[i];
        return y;
    }
};

template <typename T, typename F>
__global__ void apply(T *data, int n, F f) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] = f(data[i]);
}

__global__ void constant(float *out) {
    int i = threadIdx.x;
    out[i] = coefficients[i % 4] * table[i];
    if (i == 0) atomicAdd(&counter, 7);
    if (i < 3) grown[i] *= 2;
}

typedef int (*Operation)(int, int);
__device__ int plus(int a, int b) { return a + b; }
__device__ int times(int a, int b) { return a * b; }
__device__ int power(int a, int b) { return b == 0 ? 1 : a * power(a, b - 1); }
__device__ Operation operations[3] = {plus, times, power};

__global__ void through_pointers(int *out) { out[threadIdx.x] = operations[threadIdx.x % 3](threadIdx.x % 5, 3); }

struct Shape {
    __device__ virtual float area() const = 0;
    __device__ virtual ~Shape() {}
};
struct Square : Shape {
    float side;
    __device__ explicit Square(float s) : side(s) {}
    __device__ float area() const override { return side * side; }
};
struct Triangle : Shape {
    float base, height;
    __device__ Triangle(float b, float h) : base(b), height(h) {}
    __device__ float area() const override { return base * height / 2; }
};

__global__ void shapes(float *out) {
    Shape *shape;
    if (threadIdx.x % 2)
        shape = new Square(threadIdx.x);
    else
        shape = new Triangle(threadIdx.x, 3);
    out[threadIdx.x] = shape->area();
    delete shape;
}

int main() {
    const int n = 1000;
    std::vector<double> xs(n);
    for (int i = 0; i < n; i++) xs[i] = i / 64.0;
    Device<double> dx(xs);
    Polynomial<double, 3> p{{1, -2, 0.5}};
    apply<<<8, 128>>>(dx.data, n, p);
    double shift = 10;
    apply<<<8, 128>>>(dx.data, n, [shift] __device__(double x) { return x + shift; });
    auto ys = dx.host();
    for (int i = 0; i < n; i++) EXPECT(ys[i] == p(xs[i]) + 10, "element %d is %g", i, ys[i]);

    float c[4] = {1, 2, 3, 4};
    int t[256];
    for (int i = 0; i < 256; i++) t[i] = i * i;
    CUDA(cudaMemcpyToSymbol(coefficients, c, sizeof c));
    CUDA(cudaMemcpyToSymbol(table, t, sizeof t));
    Device<float> out(256);
    constant<<<1, 256>>>(out.data);
    auto products = out.host();
    for (int i = 0; i < 256; i++) EXPECT(products[i] == c[i % 4] * t[i], "constant %d is %g", i, products[i]);
    int count;
    CUDA(cudaMemcpyFromSymbol(&count, counter, sizeof count));
    EXPECT(count == 12, "counter is %d", count);
    float twice[3];
    CUDA(cudaMemcpyFromSymbol(twice, grown, sizeof twice));
    EXPECT(twice[0] == 3 && twice[1] == -5 && twice[2] == 16, "initialised globals: %g %g %g", twice[0], twice[1], twice[2]);
    void *address;
    CUDA(cudaGetSymbolAddress(&address, counter));
    int seven = 7;
    CUDA(cudaMemcpy(address, &seven, sizeof seven, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpyFromSymbol(&count, counter, sizeof count));
    EXPECT(count == 7, "counter through its address is %d", count);

    Device<int> numbers(30);
    through_pointers<<<1, 30>>>(numbers.data);
    auto got = numbers.host();
    for (int i = 0; i < 30; i++) {
        int a = i % 5, expected[] = {a + 3, a * 3, a * a * a};
        EXPECT(got[i] == expected[i % 3], "function pointer %d gives %d", i, got[i]);
    }

    Device<float> areas(64);
    shapes<<<1, 64>>>(areas.data);
    auto each = areas.host();
    for (int i = 0; i < 64; i++) EXPECT(each[i] == (i % 2 ? float(i) * i : i * 1.5f), "area %d is %g", i, each[i]);
    return done();
}
