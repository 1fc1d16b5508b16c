// Cooperative groups: tiles, coalesced groups, grid-wide barriers, and the launches that must be refused.
#include "check.h"

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

namespace cg = cooperative_groups;

// Each round every block reads what its neighbour wrote in the round before: wrong without a grid-wide barrier.
__global__ void pass_along(int *slots, int rounds) {
    cg::grid_group grid = cg::this_grid();
    for (int round = 0; round < rounds; round++) {
        int next = slots[(blockIdx.x + 1) % gridDim.x];
        grid.sync();
        if (threadIdx.x == 0) slots[blockIdx.x] = next;
        grid.sync();
    }
}

__global__ void tiles(int *out) {
    cg::thread_block block = cg::this_thread_block();
    auto tile = cg::tiled_partition<8>(block);
    int rank = block.thread_rank();
    out[rank] = cg::reduce(tile, rank, cg::plus<int>());
    if (rank % 3 == 0) {
        cg::coalesced_group group = cg::coalesced_threads();
        out[blockDim.x + rank] = group.size() * 1000 + group.thread_rank();
    }
}

int main() {
    const int blocks = 6, rounds = 10;
    std::vector<int> start(blocks);
    for (int i = 0; i < blocks; i++) start[i] = i;
    Device<int> slots(start);
    int count = rounds;
    void *arguments[] = {&slots.data, &count};
    CUDA(cudaLaunchCooperativeKernel((void *)pass_along, blocks, 64, arguments));
    auto end = slots.host();
    for (int i = 0; i < blocks; i++) EXPECT(end[i] == (i + rounds) % blocks, "slot %d is %d", i, end[i]);

    int most;
    cudaDeviceProp device;
    CUDA(cudaGetDeviceProperties(&device, 0));
    CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&most, pass_along, 64, 0));
    cudaError_t status = cudaLaunchCooperativeKernel((void *)pass_along, most * device.multiProcessorCount + 1, 64, arguments);
    EXPECT(status == cudaErrorCooperativeLaunchTooLarge, "an oversized cooperative launch gave %d", status);
    cudaGetLastError();

    const int n = 64;
    Device<int> out(std::vector<int>(2 * n, -1));
    tiles<<<1, n>>>(out.data);
    auto got = out.host();
    for (int i = 0; i < n; i++) {
        int first = i / 8 * 8;
        EXPECT(got[i] == first * 8 + 28, "tile sum of %d is %d", i, got[i]);
        int members = i < 32 ? 11 : 11, rank = i < 32 ? i / 3 : (i - 33) / 3;
        if (i >= 32) members = (63 - 33) / 3 + 1;
        EXPECT(got[n + i] == (i % 3 == 0 ? members * 1000 + rank : -1), "coalesced %d is %d", i, got[n + i]);
    }
    return done();
}
