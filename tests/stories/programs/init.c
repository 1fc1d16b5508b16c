/* Prints what cuInit returns. */
#include "cu.h"

int main(void) {
    open_driver();
    double from = now();
    CUresult code = cuInit(0);
    printf("cuInit %d\n", code);
    return now() - from > 30 ? 93 : code != 0;
}
