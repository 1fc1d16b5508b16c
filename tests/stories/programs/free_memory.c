/* Prints how much memory the device has free. */
#include "cu.h"

int main(void) {
    size_t free_bytes, all;
    open_driver();
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemGetInfo_v2(&free_bytes, &all));
    printf("%zu\n", free_bytes);
    return 0;
}
