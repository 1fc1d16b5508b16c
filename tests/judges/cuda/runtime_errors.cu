// Each wrong use of the runtime gives the error that CUDA documents, and none of them disturbs the next call.
#include "check.h"

__global__ void nothing() {}
__global__ void __launch_bounds__(128) bounded() {}

#define REFUSED(call, code)                                                                                 \
    do {                                                                                                    \
        cudaError_t status = (call);                                                                        \
        EXPECT(status == code, "gave %d (%s), not %d", status, cudaGetErrorName(status), code);              \
        cudaGetLastError();                                                                                 \
    } while (0)

#define LAUNCH_REFUSED(launch, code)                                                                        \
    do {                                                                                                    \
        launch;                                                                                             \
        cudaError_t status = cudaGetLastError();                                                            \
        EXPECT(status == code, "%s gave %d (%s), not %d", #launch, status, cudaGetErrorName(status), code); \
    } while (0)

int main() {
    char host[16];
    void *memory;
    CUDA(cudaMalloc(&memory, 1024));
    int devices;
    CUDA(cudaGetDeviceCount(&devices));
    REFUSED(cudaSetDevice(devices + 3), cudaErrorInvalidDevice);
    REFUSED(cudaFree(host), cudaErrorInvalidValue);
    REFUSED(cudaMemcpy(memory, host, 2048, cudaMemcpyKind(17)), cudaErrorInvalidMemcpyDirection);
    REFUSED(cudaMemcpy(host, (char *)memory + 1020, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    REFUSED(cudaMalloc(nullptr, 16), cudaErrorInvalidValue);
    LAUNCH_REFUSED((nothing<<<1, 1025>>>()), cudaErrorInvalidValue);
    LAUNCH_REFUSED((nothing<<<0, 1>>>()), cudaErrorInvalidValue);
    LAUNCH_REFUSED((nothing<<<dim3(1, 65536), 1>>>()), cudaErrorInvalidValue);
    LAUNCH_REFUSED((bounded<<<1, 256>>>()), cudaErrorInvalidValue);
    cudaStream_t stream;
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    REFUSED(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    cudaGraph_t graph = nullptr;
    REFUSED(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    CUDA(cudaStreamDestroy(stream));
    cudaEvent_t start, end;
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreate(&end));
    float elapsed;
    REFUSED(cudaEventElapsedTime(&elapsed, start, end), cudaErrorInvalidResourceHandle);
    nothing<<<1, 1>>>();
    CUDA(cudaGetLastError());

    // After a reset everything starts anew.
    CUDA(cudaDeviceReset());
    CUDA(cudaMalloc(&memory, 1024));
    nothing<<<1, 1>>>();
    return done();
}
