/* devices: counts the GPUs that a container sees, works on each of them, and checks the results. */
#include "cu.h"

enum { COUNT = 4096 };

int main(void) {
    int count;
    static unsigned from[COUNT], to[COUNT];
    open_driver();
    MUST(cuInit(0));
    MUST(cuDeviceGetCount(&count));
    for (int n = 0; n < count; n++) {
        CUcontext context;
        CUdeviceptr place;
        MUST(cuDevicePrimaryCtxRetain(&context, n));
        MUST(cuCtxSetCurrent(context));
        MUST(cuMemAlloc_v2(&place, sizeof from));
        MUST(cuModuleLoadData(&module, KERNELS));
        MUST(cuModuleGetFunction(&scale_fn, module, "scale"));
        for (unsigned i = 0; i < COUNT; i++) from[i] = i * 5 + n;
        MUST(cuMemcpyHtoD_v2(place, from, sizeof from));
        MUST(scale(place, place, COUNT, NULL));
        MUST(cuMemcpyDtoH_v2(to, place, sizeof to));
        for (unsigned i = 0; i < COUNT; i++) HOLDS(to[i] == from[i] * 3 + 1);
    }
    printf("devices %d\n", count);
    return 0;
}
