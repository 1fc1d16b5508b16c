// Device printf arrives on the program's own output, before the synchronisation returns.
#include "check.h"

__global__ void speak(const char *name, float value) {
    if (threadIdx.x == 0) {
        printf("block %d of %u says %s %5.2f %llx %c%%\n", blockIdx.x, gridDim.x, "hello", value, 0x123456789abcull, 'z');
        printf("no arguments\n");
        int returned = printf("%d %s\n", -7, "two");
        printf("printf returned %d\n", returned);
    }
}

int main() {
    std::puts("before");
    std::fflush(stdout);
    speak<<<1, 32>>>(nullptr, 3.14159f);
    CUDA(cudaDeviceSynchronize());
    std::puts("after");
    return done();
}
