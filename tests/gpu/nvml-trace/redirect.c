/* Preloaded where a program opens libnvidia-ml by a path of its own: dlopen then opens the tracer ($NVML_TRACER).
 * The tracer itself opens $REAL_NVML, which passes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

void *dlopen(const char *file, int flags)
{
    static void *(*real)(const char *, int);
    if (!real)
        real = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    const char *tracer = getenv("NVML_TRACER"), *passes = getenv("REAL_NVML");
    if (file && tracer && strstr(file, "libnvidia-ml.so") && !(passes && strcmp(file, passes) == 0))
        file = tracer;
    return real(file, flags);
}
