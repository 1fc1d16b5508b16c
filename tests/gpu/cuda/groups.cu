// Cooperation: a reduction over the whole grid with grid.sync(), and clusters of blocks that read each other's shared memory (sm_90).
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

#include "say.h"

namespace cg = cooperative_groups;

__global__ void reduce(const int *in, long long *partial, long long *out, int n) {
    cg::grid_group grid = cg::this_grid();
    cg::thread_block block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    __shared__ long long sums[32];
    long long sum = 0;
    for (int i = grid.thread_rank(); i < n; i += grid.size()) sum += in[i];
    sum = cg::reduce(warp, sum, cg::plus<long long>());
    if (warp.thread_rank() == 0) sums[warp.meta_group_rank()] = sum;
    block.sync();
    if (block.thread_rank() == 0) {
        long long total = 0;
        for (unsigned w = 0; w < warp.meta_group_size(); w++) total += sums[w];
        partial[blockIdx.x] = total;
    }
    grid.sync();
    if (grid.thread_rank() == 0) {
        long long total = 0;
        for (unsigned b = 0; b < gridDim.x; b++) total += partial[b];
        *out = total;
    }
}

__global__ void __cluster_dims__(4, 1, 1) neighbours(int *out) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ int mine;
    if (threadIdx.x == 0) mine = 100 * blockIdx.x + 7;
    cluster.sync();
    unsigned next = (cluster.block_rank() + 1) % cluster.num_blocks();
    int *theirs = cluster.map_shared_rank(&mine, next);
    if (threadIdx.x == 0) out[blockIdx.x] = *theirs;
    cluster.sync();
}

__global__ void sized_at_launch(int *out) {
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0) out[blockIdx.x] = cluster.num_blocks() * 10 + cluster.block_rank();
}

int main() {
    const int n = 1 << 22;
    int *in, *host = (int *)malloc(n * sizeof(int));
    long long *partial, *out, total;
    for (int i = 0; i < n; i++) host[i] = (i * 7919) % 10007 - 5000;
    MUST(cudaMalloc(&in, n * sizeof(int)));
    MUST(cudaMalloc(&partial, 4096 * sizeof *partial));
    MUST(cudaMalloc(&out, sizeof *out));
    MUST(cudaMemcpy(in, host, n * sizeof(int), cudaMemcpyHostToDevice));
    int per_processor, processors;
    MUST(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, reduce, 256, 0));
    MUST(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    say("resident", "%d x %d", per_processor, processors);
    int count = n;
    void *arguments[] = {&in, &partial, &out, &count};
    MUST(cudaLaunchCooperativeKernel((void *)reduce, dim3(per_processor * processors), dim3(256), arguments, 0, 0));
    MUST(cudaMemcpy(&total, out, sizeof total, cudaMemcpyDeviceToHost));
    say("sum", "%lld", total);
    TELL("too-many-blocks", cudaLaunchCooperativeKernel((void *)reduce, dim3(per_processor * processors + 1), dim3(256), arguments, 0, 0));
    cudaGetLastError();

    int *ids, found[64];
    MUST(cudaMalloc(&ids, sizeof found));
    neighbours<<<64, 32>>>(ids);
    MUST(cudaMemcpy(found, ids, sizeof found, cudaMemcpyDeviceToHost));
    say("neighbours", "%llx", mixed(found, 64));

    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(16);
    config.blockDim = dim3(32);
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = 8;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters;
    MUST(cudaOccupancyMaxActiveClusters(&clusters, sized_at_launch, &config));
    say("clusters", "%d", clusters);
    MUST(cudaLaunchKernelEx(&config, sized_at_launch, ids));
    MUST(cudaMemcpy(found, ids, 16 * sizeof(int), cudaMemcpyDeviceToHost));
    say("sized-at-launch", "%llx", mixed(found, 16));
    return 0;
}
