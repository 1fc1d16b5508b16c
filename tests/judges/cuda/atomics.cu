// Atomics of every width and kind, under contention, in global and shared memory.
#include "check.h"

#include <cuda/atomic>

struct Results {
    int add, sub, min, max, exchange, inc, dec, and_, or_, xor_;
    unsigned long long add64, max64, cas64;
    float addf;
    double addd, maxd;
    int ordered;
};

__device__ void atomic_max(double *where, double value) {
    auto *bits = reinterpret_cast<unsigned long long *>(where);
    unsigned long long seen = *bits, assumed;
    do {
        assumed = seen;
        if (__longlong_as_double(assumed) >= value) break;
        seen = atomicCAS(bits, assumed, __double_as_longlong(value));
    } while (seen != assumed);
}

__global__ void contend(Results *r) {
    int id = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&r->add, id);
    atomicSub(&r->sub, 2);
    atomicMin(&r->min, 1000 - id);
    atomicMax(&r->max, id * 3);
    atomicExch(&r->exchange, 42);
    atomicInc(reinterpret_cast<unsigned *>(&r->inc), 99);
    atomicDec(reinterpret_cast<unsigned *>(&r->dec), 99);
    atomicAnd(&r->and_, ~(1 << id % 16));
    atomicOr(&r->or_, 1 << id % 20);
    atomicXor(&r->xor_, id);
    atomicAdd(&r->add64, 1ull << 33);
    atomicMax(&r->max64, (unsigned long long)id << 40);
    atomicAdd(&r->addf, 0.5f);
    atomicAdd(&r->addd, 0.25);
    atomic_max(&r->maxd, id * 1.5);
    unsigned long long seen = r->cas64, assumed;
    do {
        assumed = seen;
        seen = atomicCAS(&r->cas64, assumed, assumed + 3);
    } while (seen != assumed);
    cuda::atomic_ref<int, cuda::thread_scope_device> counter(r->ordered);
    counter.fetch_add(1, cuda::memory_order_acq_rel);
}

__global__ void histogram(const unsigned char *in, int n, unsigned *bins) {
    __shared__ unsigned local[256];
    local[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[in[i]], 1u);
    __syncthreads();
    atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
}

// One lock taken by one thread of each block: needs blocks to make progress beside one another.
__global__ void locked(int *lock, int *value) {
    if (threadIdx.x == 0) {
        while (atomicCAS(lock, 0, 1) != 0) {
        }
        __threadfence();
        *value = *value + 1;
        __threadfence();
        atomicExch(lock, 0);
    }
}

int main() {
    const int blocks = 16, threads = 128, total = blocks * threads;
    Results start = {};
    start.min = 1 << 30;
    start.and_ = -1;
    Device<Results> device(std::vector<Results>{start});
    contend<<<blocks, threads>>>(device.data);
    Results r = device.host()[0];
    int xors = 0;
    for (int i = 0; i < total; i++) xors ^= i;
    EXPECT(r.add == total * (total - 1) / 2, "add %d", r.add);
    EXPECT(r.sub == -2 * total, "sub %d", r.sub);
    EXPECT(r.min == 1000 - (total - 1), "min %d", r.min);
    EXPECT(r.max == 3 * (total - 1), "max %d", r.max);
    EXPECT(r.exchange == 42, "exchange %d", r.exchange);
    EXPECT(r.inc == total % 100, "inc %d", r.inc);
    EXPECT(r.dec == (100 - total % 100) % 100, "dec %d", r.dec);
    EXPECT(r.and_ == int(0xffff0000), "and %x", r.and_);
    EXPECT(r.or_ == (1 << 20) - 1, "or %x", r.or_);
    EXPECT(r.xor_ == xors, "xor %x", r.xor_);
    EXPECT(r.add64 == (unsigned long long)total << 33, "add64 %llx", r.add64);
    EXPECT(r.max64 == (unsigned long long)(total - 1) << 40, "max64 %llx", r.max64);
    EXPECT(r.cas64 == 3ull * total, "cas64 %llu", r.cas64);
    EXPECT(r.addf == 0.5f * total && r.addd == 0.25 * total, "float adds %g %g", r.addf, r.addd);
    EXPECT(r.maxd == 1.5 * (total - 1), "double max %g", r.maxd);
    EXPECT(r.ordered == total, "atomic_ref %d", r.ordered);

    const int n = 50000;
    Numbers numbers;
    std::vector<unsigned char> bytes(n);
    std::vector<unsigned> expected(256);
    for (auto &b : bytes) b = numbers.next() >> 24, expected[b]++;
    Device<unsigned char> in(bytes);
    Device<unsigned> bins(std::vector<unsigned>(256, 0));
    histogram<<<8, 256>>>(in.data, n, bins.data);
    EXPECT(bins.host() == expected, "histogram");

    Device<int> lock(std::vector<int>{0}), value(std::vector<int>{0});
    locked<<<32, 64>>>(lock.data, value.data);
    EXPECT(value.host()[0] == 32, "locked counter is %d", value.host()[0]);
    return done();
}
