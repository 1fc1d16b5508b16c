// Graphs by the runtime API: captured and built by hand, host functions, copies, memory nodes, updates of an executable graph.
#include <vector>

#include "say.h"

__global__ void scale(float *data, int n, float by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] = data[i] * by + 1;
}

static std::vector<int> order;
static void note(void *what) { order.push_back((int)(size_t)what); }

static const int n = 10000;
static float host[n];

static unsigned long long result(float *device) {
    MUST(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
    return mixed(host, n);
}

int main() {
    float *device;
    cudaStream_t stream, side;
    MUST(cudaMalloc(&device, sizeof host));
    MUST(cudaStreamCreate(&stream));
    MUST(cudaStreamCreate(&side));
    MUST(cudaMemset(device, 0, sizeof host));

    // Captured, with a fork and a join.
    cudaEvent_t fork, join;
    MUST(cudaEventCreate(&fork));
    MUST(cudaEventCreate(&join));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    scale<<<(n + 255) / 256, 256, 0, stream>>>(device, n, 2);
    MUST(cudaEventRecord(fork, stream));
    MUST(cudaStreamWaitEvent(side, fork));
    scale<<<(n / 2 + 255) / 256, 256, 0, side>>>(device, n / 2, 3);
    scale<<<(n / 2 + 255) / 256, 256, 0, stream>>>(device + n / 2, n / 2, 5);
    MUST(cudaLaunchHostFunc(side, note, (void *)1));
    MUST(cudaEventRecord(join, side));
    MUST(cudaStreamWaitEvent(stream, join));
    MUST(cudaStreamEndCapture(stream, &graph));
    size_t nodes = 0;
    MUST(cudaGraphGetNodes(graph, nullptr, &nodes));
    say("nodes", "%zu", nodes);
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 5; i++) MUST(cudaGraphLaunch(exec, stream));
    MUST(cudaStreamSynchronize(stream));
    say("captured", "%llx", result(device));
    say("host-functions", "%zu", order.size());

    // By hand: copy in, kernel, copy out, host function; then the kernel's argument is changed.
    cudaGraph_t made;
    MUST(cudaGraphCreate(&made, 0));
    float in[n], out[n];
    for (int i = 0; i < n; i++) in[i] = i;
    cudaGraphNode_t copy_in, kernel, copy_out, tell;
    MUST(cudaGraphAddMemcpyNode1D(&copy_in, made, nullptr, 0, device, in, sizeof in, cudaMemcpyHostToDevice));
    int count = n;
    float by = 4;
    void *arguments[] = {&device, &count, &by};
    cudaKernelNodeParams params = {};
    params.func = (void *)scale;
    params.gridDim = dim3((n + 255) / 256);
    params.blockDim = dim3(256);
    params.kernelParams = arguments;
    MUST(cudaGraphAddKernelNode(&kernel, made, &copy_in, 1, &params));
    MUST(cudaGraphAddMemcpyNode1D(&copy_out, made, &kernel, 1, out, device, sizeof out, cudaMemcpyDeviceToHost));
    cudaHostNodeParams function = {note, (void *)2};
    MUST(cudaGraphAddHostNode(&tell, made, &copy_out, 1, &function));
    cudaGraphExec_t made_exec;
    MUST(cudaGraphInstantiate(&made_exec, made, 0));
    MUST(cudaGraphLaunch(made_exec, stream));
    MUST(cudaStreamSynchronize(stream));
    say("by-hand", "%llx", mixed(out, n));
    by = 9;
    TELL("set-params", cudaGraphExecKernelNodeSetParams(made_exec, kernel, &params));
    MUST(cudaGraphLaunch(made_exec, stream));
    MUST(cudaStreamSynchronize(stream));
    say("by-hand-changed", "%llx", mixed(out, n));
    say("order", "%d %d", order[order.size() - 2], order[order.size() - 1]);

    // Memory that belongs to the graph.
    cudaGraph_t with_memory;
    cudaGraphExec_t with_memory_exec;
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    float *temporary;
    cudaError_t allocated = cudaMallocAsync(&temporary, sizeof host, stream);
    if (allocated == cudaSuccess) {
        MUST(cudaMemcpyAsync(temporary, device, sizeof host, cudaMemcpyDeviceToDevice, stream));
        scale<<<(n + 255) / 256, 256, 0, stream>>>(temporary, n, 2);
        MUST(cudaMemcpyAsync(device, temporary, sizeof host, cudaMemcpyDeviceToDevice, stream));
        MUST(cudaFreeAsync(temporary, stream));
    }
    say("memory-node", "%s", cudaGetErrorName(allocated));
    cudaError_t ended = cudaStreamEndCapture(stream, &with_memory);
    if (allocated == cudaSuccess) {
        MUST(ended);
        MUST(cudaGraphInstantiate(&with_memory_exec, with_memory, 0));
        for (int i = 0; i < 3; i++) MUST(cudaGraphLaunch(with_memory_exec, stream));
        MUST(cudaStreamSynchronize(stream));
        say("memory-node-result", "%llx", result(device));
    }
    cudaGetLastError();

    // What a capture forbids.
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    TELL("synchronise-in-capture", cudaStreamSynchronize(stream));
    cudaGraph_t broken;
    TELL("end-of-broken-capture", cudaStreamEndCapture(stream, &broken));
    say("cleared", "%s", cudaGetErrorName(cudaGetLastError()));
    scale<<<1, 32, 0, stream>>>(device, 32, 1);
    TELL("afterwards", cudaStreamSynchronize(stream));
    return 0;
}
