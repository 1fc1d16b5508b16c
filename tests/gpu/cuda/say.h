// How a program tells what it found: one `= key value` line a fact, compared between native and remote.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

inline void say(const char *key, const char *format, ...) __attribute__((format(printf, 2, 3)));
inline void say(const char *key, const char *format, ...) {
    printf("= %s ", key);
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    fflush(stdout);
}

// A call whose result is a fact.
#define TELL(key, ...) say(key, "%s", cudaGetErrorName(__VA_ARGS__))

// A call that must succeed for anything after it to mean something.
#define MUST(call)                                                                          \
    do {                                                                                    \
        cudaError_t error_ = (call);                                                        \
        if (error_ != cudaSuccess) {                                                        \
            printf("! %s:%d %s\n", __FILE__, __LINE__, cudaGetErrorName(error_));          \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

// A function of the driver: the program is not linked with it.
template <typename F>
inline F entry(const char *name) {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found;
    MUST(cudaGetDriverEntryPointByVersion(name, &function, 12080, cudaEnableDefault, &found));
    if (!function) {
        printf("! there is no %s\n", name);
        exit(1);
    }
    return (F)function;
}

#define DRIVER(name) entry<decltype(&name)>(#name)

// A sum that tells one array from another, whatever the order of its parts.
template <typename T>
unsigned long long mixed(const T *values, size_t count) {
    unsigned long long total = 1469598103934665603ull;
    const unsigned char *bytes = reinterpret_cast<const unsigned char *>(values);
    for (size_t i = 0; i < count * sizeof(T); i++) total = (total ^ bytes[i]) * 1099511628211ull;
    return total;
}
