// Control flow that is hard on a warp: recursion, pointers to functions, locks between lanes, switches, virtual calls.
#include <cassert>
#include <cstdio>

__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
extern "C" __global__ void fibonacci(int *out) { out[threadIdx.x] = fib(threadIdx.x % 12); }

typedef int (*op_t)(int, int);
__device__ __noinline__ int add(int a, int b) { return a + b; }
__device__ __noinline__ int sub(int a, int b) { return a - b; }
__device__ __noinline__ int mul(int a, int b) { return a * b; }
__device__ op_t table[3] = {add, sub, mul};
extern "C" __global__ void pointers(const int *a, const int *b, int *out) {
  int i = threadIdx.x;
  out[i] = table[i % 3](a[i], b[i]);
}

extern "C" __global__ void spinlock(int *lock, int *counter) {
  // Every lane takes the lock in turn, while the others of its warp spin.
  while (atomicCAS(lock, 0, 1) != 0) {}
  __threadfence();
  *(volatile int *)counter = *(volatile int *)counter + 1;
  __threadfence();
  atomicExch(lock, 0);
}

extern "C" __global__ void switches(const int *in, int *out) {
  int i = threadIdx.x, r;
  switch (in[i]) {
    case 0: r = 10; break;
    case 1: r = in[i] * 7 + i; break;
    case 2: r = i * i; break;
    case 3: r = -i; break;
    case 4: r = i ^ 0x55; break;
    case 5: r = i << 3; break;
    case 6: r = i % 5; break;
    default: r = 99;
  }
  out[i] = r;
}

struct Shape { __device__ virtual float area() const = 0; };
struct Square : Shape { float s; __device__ Square(float s) : s(s) {} __device__ float area() const override { return s * s; } };
struct Circle : Shape { float r; __device__ Circle(float r) : r(r) {} __device__ float area() const override { return 3.0f * r * r; } };
extern "C" __global__ void shapes(float *out) {
  int i = threadIdx.x;
  Shape *s = i % 2 ? (Shape *)new Square(i) : (Shape *)new Circle(i);
  out[i] = s->area();
  delete s;
}

extern "C" __global__ void collatz(const unsigned *in, unsigned *out) {
  unsigned n = in[threadIdx.x], steps = 0;
  while (n != 1) {
    if (n % 2) n = 3 * n + 1; else n /= 2;
    if (++steps > 500) return;
  }
  out[threadIdx.x] = steps;
}

extern "C" __global__ void checked(int limit) { assert((int)threadIdx.x < limit); }

extern "C" __global__ void say(int n) {
  if (threadIdx.x < n) printf("%d|%5.2f|%-4s|%08x|%c|%lld|%g|%%\n", threadIdx.x, 1.5 * threadIdx.x, "ab", 255u, 'z', -5000000000LL, 1e-7);
}
