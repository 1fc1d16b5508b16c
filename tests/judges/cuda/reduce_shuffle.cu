// Warp shuffles, votes, matches and reductions across whole and partial warps.
#include "check.h"

__device__ float warp_sum(float value) {
    for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xffffffff, value, step);
    return value;
}

__global__ void sum(const float *in, float *out, int n) {
    __shared__ float partial[32];
    float mine = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) mine += in[i];
    mine = warp_sum(mine);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x < 32) {
        mine = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
        mine = warp_sum(mine);
        if (threadIdx.x == 0) atomicAdd(out, mine);
    }
}

__global__ void lanes(unsigned *out) {
    unsigned lane = threadIdx.x;
    unsigned *mine = out + lane * 10;
    mine[0] = __shfl_sync(0xffffffff, lane * 3, 31 - lane);
    mine[1] = __shfl_up_sync(0xffffffff, lane, 5, 16);
    mine[2] = __shfl_xor_sync(0xffffffff, lane, 21);
    mine[3] = __ballot_sync(0xffffffff, lane % 3 == 0);
    mine[4] = __any_sync(0xffffffff, lane == 17) * 2 + __all_sync(0xffffffff, lane != 17);
    mine[5] = __match_any_sync(0xffffffff, lane / 7);
    mine[6] = __reduce_add_sync(0xffffffff, lane);
    mine[7] = __popc(lane) + __clz(lane) * 100 + __ffs(lane) * 10000;
    if (lane % 2) {
        mine[8] = __activemask();
        mine[9] = __shfl_sync(0xaaaaaaaa, lane, 1);
    } else {
        mine[8] = __reduce_max_sync(0x55555555, lane);
        mine[9] = __brev(lane);
    }
}

static int leading_zeros(unsigned x) { return x ? __builtin_clz(x) : 32; }

int main() {
    const int n = 200000;
    Numbers numbers;
    std::vector<float> in(n);
    double expected = 0;
    for (auto &x : in) x = numbers.unit(), expected += x;
    Device<float> device(in), total(std::vector<float>{0});
    sum<<<24, 256>>>(device.data, total.data, n);
    float got = total.host()[0];
    EXPECT(std::fabs(got - expected) < expected * 1e-5, "%g, not %g", got, expected);

    Device<unsigned> out(32 * 10);
    lanes<<<1, 32>>>(out.data);
    auto all = out.host();
    for (unsigned lane = 0; lane < 32; lane++) {
        const unsigned *mine = &all[lane * 10];
        unsigned thirds = 0, sevenths = 0;
        for (unsigned i = 0; i < 32; i++) {
            if (i % 3 == 0) thirds |= 1u << i;
            if (i / 7 == lane / 7) sevenths |= 1u << i;
        }
        EXPECT(mine[0] == (31 - lane) * 3, "shfl lane %u: %u", lane, mine[0]);
        EXPECT(mine[1] == (lane % 16 >= 5 ? lane - 5 : lane), "shfl_up lane %u: %u", lane, mine[1]);
        EXPECT(mine[2] == (lane ^ 21), "shfl_xor lane %u: %u", lane, mine[2]);
        EXPECT(mine[3] == thirds, "ballot lane %u: %x", lane, mine[3]);
        EXPECT(mine[4] == 2, "any/all lane %u: %u", lane, mine[4]);
        EXPECT(mine[5] == sevenths, "match lane %u: %x", lane, mine[5]);
        EXPECT(mine[6] == 496, "reduce lane %u: %u", lane, mine[6]);
        unsigned bits = __builtin_popcount(lane) + leading_zeros(lane) * 100 + __builtin_ffs(lane) * 10000;
        EXPECT(mine[7] == bits, "bits lane %u: %u", lane, mine[7]);
        if (lane % 2) {
            EXPECT(mine[8] == 0xaaaaaaaa, "activemask lane %u: %x", lane, mine[8]);
            EXPECT(mine[9] == 1, "half shfl lane %u: %u", lane, mine[9]);
        } else {
            unsigned reversed = 0;
            for (int i = 0; i < 32; i++) reversed |= (lane >> i & 1) << (31 - i);
            EXPECT(mine[8] == 30, "reduce_max lane %u: %u", lane, mine[8]);
            EXPECT(mine[9] == reversed, "brev lane %u: %x", lane, mine[9]);
        }
    }
    return done();
}
