// Streams in order, events across streams, host functions, captured and hand-made graphs, and their updates.
#include "check.h"

#include <atomic>

__global__ void add(int *data, int n, int amount) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] += amount;
}
__global__ void twice(int *data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] *= 2;
}

static void note(void *where) { static_cast<std::atomic<int> *>(where)->fetch_add(1); }

int main() {
    const int n = 4096, bytes = n * sizeof(int);
    int *host, *device;
    CUDA(cudaMallocHost(&host, bytes));
    CUDA(cudaMalloc(&device, bytes));
    cudaStream_t first, second;
    CUDA(cudaStreamCreate(&first));
    CUDA(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    cudaEvent_t begin, middle, end;
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreateWithFlags(&middle, cudaEventDisableTiming));
    CUDA(cudaEventCreate(&end));

    // first: fill, add 3; second: waits, doubles, copies back.
    for (int i = 0; i < n; i++) host[i] = i;
    std::atomic<int> notes{0};
    CUDA(cudaEventRecord(begin, first));
    CUDA(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, first));
    add<<<n / 256, 256, 0, first>>>(device, n, 3);
    CUDA(cudaLaunchHostFunc(first, note, &notes));
    CUDA(cudaEventRecord(middle, first));
    CUDA(cudaStreamWaitEvent(second, middle, 0));
    twice<<<n / 256, 256, 0, second>>>(device, n);
    CUDA(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, second));
    CUDA(cudaEventRecord(end, second));
    CUDA(cudaEventSynchronize(end));
    for (int i = 0; i < n; i++) EXPECT(host[i] == (i + 3) * 2, "element %d is %d", i, host[i]);
    EXPECT(notes == 1, "the host function ran %d times", notes.load());
    float milliseconds = -1;
    CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
    EXPECT(milliseconds > 0 && milliseconds < 60000, "elapsed %g", milliseconds);
    EXPECT(cudaEventElapsedTime(&milliseconds, begin, middle) == cudaErrorInvalidResourceHandle, "untimed event was timed");
    CUDA(cudaStreamQuery(second));

    // A capture that forks to the second stream and joins again.
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal));
    CUDA(cudaMemsetAsync(device, 0, bytes, first));
    CUDA(cudaEventRecord(middle, first));
    CUDA(cudaStreamWaitEvent(second, middle, 0));
    add<<<n / 512, 256, 0, first>>>(device, n / 2, 5);
    add<<<n / 512, 256, 0, second>>>(device + n / 2, n / 2, 7);
    CUDA(cudaEventRecord(end, second));
    CUDA(cudaStreamWaitEvent(first, end, 0));
    twice<<<n / 256, 256, 0, first>>>(device, n);
    CUDA(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, first));
    CUDA(cudaStreamEndCapture(first, &graph));
    size_t nodes = 0;
    CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
    EXPECT(nodes == 5, "the capture has %zu nodes", nodes);
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < n; i++) host[i] = -1;
        CUDA(cudaGraphLaunch(exec, first));
        CUDA(cudaStreamSynchronize(first));
        for (int i = 0; i < n; i++) EXPECT(host[i] == (i < n / 2 ? 10 : 14), "round %d element %d is %d", round, i, host[i]);
    }
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));

    // A graph made by hand, then updated in place.
    CUDA(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t set, grow;
    cudaMemsetParams fill = {};
    fill.dst = device;
    fill.value = 1;
    fill.elementSize = 4;
    fill.width = n;
    fill.height = 1;
    CUDA(cudaGraphAddMemsetNode(&set, graph, nullptr, 0, &fill));
    int count = n, amount = 9;
    int *pointer = device;
    void *arguments[] = {&pointer, &count, &amount};
    cudaKernelNodeParams kernel = {};
    kernel.func = (void *)add;
    kernel.gridDim = dim3(n / 256);
    kernel.blockDim = dim3(256);
    kernel.kernelParams = arguments;
    CUDA(cudaGraphAddKernelNode(&grow, graph, &set, 1, &kernel));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphLaunch(exec, second));
    CUDA(cudaStreamSynchronize(second));
    CUDA(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
    EXPECT(host[0] == 10 && host[n - 1] == 10, "graph gives %d %d", host[0], host[n - 1]);
    amount = 100;
    CUDA(cudaGraphExecKernelNodeSetParams(exec, grow, &kernel));
    CUDA(cudaGraphLaunch(exec, second));
    CUDA(cudaStreamSynchronize(second));
    CUDA(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
    EXPECT(host[0] == 101 && host[n - 1] == 101, "updated graph gives %d %d", host[0], host[n - 1]);

    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(first));
    CUDA(cudaStreamDestroy(second));
    CUDA(cudaFreeHost(host));
    CUDA(cudaFree(device));
    return done();
}
