// Green contexts beside the runtime: parts of the multiprocessors, their streams, memory and events that all share.
#include "check.h"

#include <cuda.h>

template <typename F>
static F function(const char *name, int version = 12050) {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    CUDA(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result));
    EXPECT(found && result == cudaDriverEntryPointSuccess, "no %s", name);
    return reinterpret_cast<F>(found);
}
#define DRIVER(name) function<decltype(&name)>(#name)
#define GOOD(call)                                                    \
    do {                                                              \
        CUresult code_ = (call);                                      \
        EXPECT(code_ == CUDA_SUCCESS, "%s gave %d", #call, (int)code_); \
    } while (0)

__global__ void add(int *data, int amount) { data[blockIdx.x * blockDim.x + threadIdx.x] += amount; }

int main() {
    const int n = 1024;
    int *data, host[n];
    CUDA(cudaMalloc(&data, n * sizeof(int)));
    CUDA(cudaMemset(data, 0, n * sizeof(int)));
    // A stream of a green context waits for no default stream.
    CUDA(cudaDeviceSynchronize());
    cudaDeviceProp properties;
    CUDA(cudaGetDeviceProperties(&properties, 0));

    CUdevResource whole = {}, group = {}, rest = {}, own = {};
    GOOD(DRIVER(cuDeviceGetDevResource)(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
    EXPECT((int)whole.sm.smCount == properties.multiProcessorCount, "%u", whole.sm.smCount);
    unsigned groups = 1;
    GOOD(DRIVER(cuDevSmResourceSplitByCount)(&group, &groups, &whole, &rest, 0, 2));
    EXPECT(groups == 1 && group.sm.smCount >= 2 && group.sm.smCount + rest.sm.smCount == whole.sm.smCount, "%u %u %u", groups,
           group.sm.smCount, rest.sm.smCount);
    CUdevResourceDesc description;
    GOOD(DRIVER(cuDevResourceGenerateDesc)(&description, &group, 1));
    CUgreenCtx green;
    GOOD(DRIVER(cuGreenCtxCreate)(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    GOOD(DRIVER(cuGreenCtxGetDevResource)(green, &own, CU_DEV_RESOURCE_TYPE_SM));
    EXPECT(own.sm.smCount == group.sm.smCount, "%u", own.sm.smCount);

    // A stream of it is a stream of the runtime.
    CUstream stream;
    GOOD(DRIVER(cuGreenCtxStreamCreate)(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    cudaEvent_t done;
    CUDA(cudaEventCreate(&done));
    add<<<n / 128, 128, 0, stream>>>(data, 1);
    CUDA(cudaEventRecord(done, stream));
    CUDA(cudaStreamWaitEvent(cudaStreamLegacy, done, 0));
    add<<<n / 128, 128>>>(data, 2);
    CUDA(cudaDeviceSynchronize());

    // Its default stream, while it is current.
    CUcontext context, popped, current;
    GOOD(DRIVER(cuCtxFromGreenCtx)(&context, green));
    GOOD(DRIVER(cuCtxPushCurrent)(context));
    GOOD(DRIVER(cuCtxGetCurrent)(&current));
    EXPECT(current == context, "another context is current");
    add<<<n / 128, 128>>>(data, 4);
    CUDA(cudaGetLastError());
    CUDA(cudaStreamSynchronize(nullptr));
    int *inside;
    CUDA(cudaMalloc(&inside, n * sizeof(int)));
    CUDA(cudaMemcpy(inside, data, n * sizeof(int), cudaMemcpyDeviceToDevice));
    GOOD(DRIVER(cuCtxPopCurrent)(&popped));
    EXPECT(popped == context, "another context came off");

    GOOD(DRIVER(cuStreamDestroy)(stream));
    GOOD(DRIVER(cuGreenCtxDestroy)(green));
    CUDA(cudaMemcpy(host, inside, n * sizeof(int), cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) EXPECT(host[i] == 7, "element %d is %d", i, host[i]);
    CUDA(cudaFree(inside));
    puts("ok");
    return 0;
}
