// Conditional nodes: a loop that kernels end, if and else, a switch, a loop in a body, values that begin anew with each launch.
#include "check.h"

__global__ void count(cudaGraphConditionalHandle more, int *word, int limit) {
    *word += 1;
    cudaGraphSetConditional(more, *word < limit);
}
__global__ void choose(cudaGraphConditionalHandle which, const int *word) { cudaGraphSetConditional(which, *word); }
__global__ void add(int *word, int amount) { *word += amount; }

static cudaGraphNode_t node_of(cudaGraph_t graph, const cudaGraphNode_t *after, size_t count, cudaGraphNodeParams *params) {
    cudaGraphNode_t node;
#if CUDART_VERSION >= 13000
    CUDA(cudaGraphAddNode(&node, graph, after, nullptr, count, params));
#else
    CUDA(cudaGraphAddNode(&node, graph, after, count, params));
#endif
    return node;
}

static cudaGraphNode_t kernel(cudaGraph_t graph, const cudaGraphNode_t *after, size_t count, void *function, void **arguments) {
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeKernel;
    params.kernel.func = function;
    params.kernel.gridDim = params.kernel.blockDim = dim3(1);
    params.kernel.kernelParams = arguments;
    return node_of(graph, after, count, &params);
}

static cudaGraph_t *bodies(cudaGraph_t graph, const cudaGraphNode_t *after, size_t count, cudaGraphConditionalHandle handle,
                           cudaGraphConditionalNodeType type, unsigned size) {
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = size;
    node_of(graph, after, count, &params);
    return params.conditional.phGraph_out;
}

static int read(const int *device) {
    int value;
    CUDA(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost));
    return value;
}

static void write(int *device, int value) { CUDA(cudaMemcpy(device, &value, sizeof value, cudaMemcpyHostToDevice)); }

static void run(cudaGraphExec_t exec, cudaStream_t stream) {
    CUDA(cudaGraphLaunch(exec, stream));
    CUDA(cudaStreamSynchronize(stream));
}

static void loops(cudaStream_t stream, int *words) {
    cudaGraph_t graph;
    CUDA(cudaGraphCreate(&graph, 0));
    cudaGraphConditionalHandle outer, inner;
    CUDA(cudaGraphConditionalHandleCreate(&outer, graph, 1, cudaGraphCondAssignDefault));
    CUDA(cudaGraphConditionalHandleCreate(&inner, graph, 1, cudaGraphCondAssignDefault));
    cudaGraph_t body = bodies(graph, nullptr, 0, outer, cudaGraphCondTypeWhile, 1)[0];
    int limit = 10, *word = words;
    void *arguments[] = {&outer, &word, &limit};
    cudaGraphNode_t counted = kernel(body, nullptr, 0, (void *)count, arguments);
    cudaGraph_t within = bodies(body, &counted, 1, inner, cudaGraphCondTypeWhile, 1)[0];
    int inner_limit = 4, *inner_word = words + 1;
    void *inner_arguments[] = {&inner, &inner_word, &inner_limit};
    kernel(within, nullptr, 0, (void *)count, inner_arguments);
    cudaGraphExec_t exec;
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    write(words, 0), write(words + 1, 0);
    run(exec, stream);
    EXPECT(read(words) == 10 && read(words + 1) == 4, "%d %d", read(words), read(words + 1));
    // Both values begin with 1 again: each body runs once more.
    run(exec, stream);
    EXPECT(read(words) == 11 && read(words + 1) == 5, "%d %d", read(words), read(words + 1));
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
}

static void choices(cudaStream_t stream, int *words) {
    cudaGraph_t graph;
    CUDA(cudaGraphCreate(&graph, 0));
    cudaGraphConditionalHandle either, which;
    CUDA(cudaGraphConditionalHandleCreate(&either, graph, 0, 0));
    CUDA(cudaGraphConditionalHandleCreate(&which, graph, 0, cudaGraphCondAssignDefault));
    int *word = words;
    void *first[] = {&either, &word}, *second[] = {&which, &word};
    cudaGraphNode_t chosen[] = {kernel(graph, nullptr, 0, (void *)choose, first),
                                kernel(graph, nullptr, 0, (void *)choose, second)};
    cudaGraph_t *two = bodies(graph, chosen, 2, either, cudaGraphCondTypeIf, 2);
    cudaGraph_t *cases = bodies(graph, chosen, 2, which, cudaGraphCondTypeSwitch, 3);
    int amounts[] = {1, 2, 10, 20, 30}, *target = words + 1, *other = words + 2;
    for (int i = 0; i < 5; i++) {
        int **where = i < 2 ? &target : &other;
        void *arguments[] = {where, &amounts[i]};
        kernel(i < 2 ? two[i] : cases[i - 2], nullptr, 0, (void *)add, arguments);
    }
    cudaGraphExec_t exec;
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    const int expected[4][2] = {{2, 10}, {1, 20}, {1, 30}, {1, 0}};
    for (int value = 0; value < 4; value++) {
        write(words, value), write(words + 1, 0), write(words + 2, 0);
        run(exec, stream);
        EXPECT(read(words + 1) == expected[value][0] && read(words + 2) == expected[value][1], "%d gave %d %d", value,
               read(words + 1), read(words + 2));
    }
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
}

// A body that is filled by a capture.
static void captured(cudaStream_t stream, int *words) {
    cudaGraph_t graph;
    CUDA(cudaGraphCreate(&graph, 0));
    cudaGraphConditionalHandle more;
    CUDA(cudaGraphConditionalHandleCreate(&more, graph, 1, cudaGraphCondAssignDefault));
    cudaGraph_t body = bodies(graph, nullptr, 0, more, cudaGraphCondTypeWhile, 1)[0];
    CUDA(cudaStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0, cudaStreamCaptureModeGlobal));
    add<<<1, 1, 0, stream>>>(words + 1, 3);
    count<<<1, 1, 0, stream>>>(more, words, 7);
    cudaGraph_t same;
    CUDA(cudaStreamEndCapture(stream, &same));
    EXPECT(same == body, "another graph was filled");
    cudaGraphExec_t exec;
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    write(words, 0), write(words + 1, 0);
    run(exec, stream);
    EXPECT(read(words) == 7 && read(words + 1) == 21, "%d %d", read(words), read(words + 1));
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
}

int main() {
    cudaStream_t stream;
    CUDA(cudaStreamCreate(&stream));
    int *words;
    CUDA(cudaMalloc(&words, 3 * sizeof(int)));
    loops(stream, words);
    choices(stream, words);
    captured(stream, words);
    puts("ok");
    return 0;
}
