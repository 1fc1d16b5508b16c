// What every program here shares: stop at the first CUDA error or wrong number, say which, and say "ok" at the end.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CUDA(call)                                                                                       \
    do {                                                                                                 \
        cudaError_t status = (call);                                                                     \
        if (status != cudaSuccess) {                                                                     \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status)); \
            std::exit(1);                                                                                \
        }                                                                                                \
    } while (0)

#define EXPECT(condition, ...)                                                  \
    do {                                                                        \
        if (!(condition)) {                                                     \
            std::fprintf(stderr, "%s:%d: not true: %s: ", __FILE__, __LINE__, #condition); \
            std::fprintf(stderr, __VA_ARGS__);                                  \
            std::fprintf(stderr, "\n");                                         \
            std::exit(1);                                                       \
        }                                                                       \
    } while (0)

// A repeatable source of numbers that look random; the same on every machine.
struct Numbers {
    unsigned state = 12345;
    unsigned next() { return state = state * 1664525u + 1013904223u; }
    float unit() { return float(next() >> 8) / float(1 << 24); }
};

template <typename T>
struct Device {
    T *data = nullptr;
    size_t count;
    explicit Device(size_t n) : count(n) { CUDA(cudaMalloc(&data, n * sizeof(T))); }
    explicit Device(const std::vector<T> &from) : Device(from.size()) {
        CUDA(cudaMemcpy(data, from.data(), count * sizeof(T), cudaMemcpyHostToDevice));
    }
    Device(const Device &) = delete;
    ~Device() { cudaFree(data); }
    std::vector<T> host() const {
        std::vector<T> to(count);
        CUDA(cudaMemcpy(to.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
        return to;
    }
};

inline int done() {
    CUDA(cudaDeviceSynchronize());
    std::puts("ok");
    return 0;
}
