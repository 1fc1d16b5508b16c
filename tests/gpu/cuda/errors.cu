// What the runtime answers when it is used wrongly: each code, and that an error of a launch does not poison later calls.
#include "say.h"

__global__ void nothing(int *out) {
    if (out) *out = 1;
}

int main() {
    int *device;
    MUST(cudaMalloc(&device, 1024));
    char host[1024];
    nothing<<<1, 2048>>>(device);
    TELL("too-many-threads", cudaPeekAtLastError());
    TELL("last", cudaGetLastError());
    TELL("last-again", cudaGetLastError());
    nothing<<<0, 1>>>(device);
    TELL("no-blocks", cudaGetLastError());
    nothing<<<1, 1, 1 << 20>>>(device);
    TELL("too-much-shared", cudaGetLastError());
    nothing<<<dim3(1, 70000), 1>>>(device);
    TELL("grid-too-high", cudaGetLastError());
    TELL("copy-from-null", cudaMemcpy(device, nullptr, 10, cudaMemcpyHostToDevice));
    TELL("copy-too-much", cudaMemcpy(host, device, 1ull << 40, cudaMemcpyDeviceToHost));
    TELL("copy-nowhere", cudaMemcpy(host, (void *)0x1234, 10, cudaMemcpyDeviceToHost));
    TELL("copy-nothing", cudaMemcpy(host, device, 0, cudaMemcpyDeviceToHost));
    TELL("bad-direction", cudaMemcpy(host, device, 10, (cudaMemcpyKind)77));
    TELL("free-twice", (cudaFree(device), cudaFree(device)));
    TELL("free-null", cudaFree(nullptr));
    TELL("free-inside", cudaFree((char *)device + 8));
    TELL("memset-nowhere", cudaMemset((void *)0x5678, 0, 4));
    TELL("no-device", cudaSetDevice(99));
    int value;
    TELL("bad-attribute", cudaDeviceGetAttribute(&value, (cudaDeviceAttr)9999, 0));
    TELL("all-memory", cudaMalloc(&device, 1ull << 46));
    cudaStream_t stream;
    MUST(cudaStreamCreate(&stream));
    TELL("query-idle", cudaStreamQuery(stream));
    cudaEvent_t event, untimed;
    MUST(cudaEventCreate(&event));
    MUST(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    float ms;
    TELL("elapsed-unrecorded", cudaEventElapsedTime(&ms, event, event));
    MUST(cudaEventRecord(event, stream));
    MUST(cudaEventRecord(untimed, stream));
    MUST(cudaStreamSynchronize(stream));
    TELL("elapsed-untimed", cudaEventElapsedTime(&ms, event, untimed));
    TELL("host-memory-twice", [&] {
        void *memory = malloc(1 << 20);
        cudaError_t first = cudaHostRegister(memory, 1 << 20, 0), second = cudaHostRegister(memory, 1 << 20, 0);
        if (first == cudaSuccess) cudaHostUnregister(memory);
        free(memory);
        return first == cudaSuccess ? second : first;
    }());
    cudaGetLastError();
    MUST(cudaMalloc(&device, 1024));
    nothing<<<1, 1, 0, stream>>>(device);
    TELL("afterwards", cudaStreamSynchronize(stream));
    int found = 0;
    TELL("read", cudaMemcpy(&found, device, 4, cudaMemcpyDeviceToHost));
    say("value", "%d", found);
    for (int code : {0, 1, 2, 98, 100, 101, 209, 400, 700, 701, 719, 999, 12345})
        say("text", "%d %s: %s", code, cudaGetErrorName((cudaError_t)code), cudaGetErrorString((cudaError_t)code));
    return 0;
}
