// Variables declared __managed__: the host and kernels use them by name, with and without first values, beside plain variables,
// from several streams, through pointers, as either end of copies, and in a second module.
#include "say.h"

#include <cstring>

struct Pair {
    int first;
    int *where;
};

__device__ __managed__ int counter = 40;
__device__ int plain = 7;
__device__ __managed__ Pair pair;
__device__ __managed__ unsigned table[1 << 18];
__device__ __managed__ double scale = 0.5;
__device__ int plain_too = 11;
__managed__ char text[16] = "from the host";

// What is true natively and remotely.
static void check(const char *key, bool is_right) { say(key, "%s", is_right ? "right" : "wrong"); }

__global__ void bump(int by) {
    counter += by;
    plain += by;
    plain_too += plain;
    scale *= 3;
}

__global__ void follow() { *pair.where += pair.first; }

__global__ void fill(unsigned add) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    table[i] = table[i] * 5 + add + (unsigned)i;
}

static void by_name() {
    check("first values", counter == 40 && scale == 0.5 && !strcmp(text, "from the host") && table[77] == 0);
    bump<<<1, 1>>>(2);
    MUST(cudaDeviceSynchronize());
    check("after a kernel", counter == 42 && scale == 1.5);
    counter = 100;
    bump<<<1, 1>>>(1);
    bump<<<1, 1>>>(1);
    MUST(cudaDeviceSynchronize());
    check("host and kernels in turn", counter == 102 && scale == 13.5);
    int near[2];
    MUST(cudaMemcpyFromSymbol(&near[0], plain, sizeof(int)));
    MUST(cudaMemcpyFromSymbol(&near[1], plain_too, sizeof(int)));
    // 7 + 2 + 1 + 1; 11 + 9 + 10 + 11
    check("plain neighbours", near[0] == 11 && near[1] == 41);
}

static void by_pointer() {
    pair = Pair{5, &counter};
    counter = 1;
    follow<<<1, 1>>>();
    MUST(cudaDeviceSynchronize());
    check("a pointer in a variable", counter == 6 && pair.first == 5 && pair.where == &counter);
    void *address = nullptr;
    MUST(cudaGetSymbolAddress(&address, counter));
    check("one address", address == &counter);
    cudaPointerAttributes attributes;
    MUST(cudaPointerGetAttributes(&attributes, &counter));
    say("kind", "%d", attributes.type);
}

static void large() {
    size_t count = sizeof(table) / sizeof(table[0]);
    for (size_t i = 0; i < count; i++) table[i] = (unsigned)(i * 7);
    fill<<<count / 256, 256>>>(3);
    MUST(cudaDeviceSynchronize());
    bool is_right = true;
    for (size_t i = 0; i < count; i++) is_right &= table[i] == (unsigned)(i * 7) * 5 + 3 + (unsigned)i;
    check("large", is_right);
    table[count - 1] = 9;
    fill<<<count / 256, 256>>>(1);
    MUST(cudaDeviceSynchronize());
    check("its last word", table[count - 1] == 45 + 1 + (unsigned)(count - 1));
    say("large sum", "%llx", mixed(table, count));
}

static void copies() {
    int value = 77, back = 0;
    MUST(cudaMemcpyToSymbol(counter, &value, sizeof value));
    check("copied to", counter == 77);
    counter = 78;
    MUST(cudaMemcpyFromSymbol(&back, counter, sizeof back));
    check("copied from", back == 78);
    MUST(cudaMemset(table, 0x11, 4096));
    check("set", table[0] == 0x11111111 && table[1023] == 0x11111111 && table[1024] != 0x11111111);
}

static void streams() {
    cudaStream_t one;
    MUST(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    counter = 0;
    for (int i = 0; i < 100; i++) bump<<<1, 1, 0, one>>>(1);
    MUST(cudaStreamSynchronize(one));
    check("a stream", counter == 100);
    MUST(cudaStreamDestroy(one));
}

static const char *SECOND = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .global .attribute(.managed) .align 4 .u32 other = 21;
.visible .entry twice()
{
    .reg .b32 %r<3>;
    ld.global.u32 %r1, [other];
    add.u32 %r2, %r1, %r1;
    st.global.u32 [other], %r2;
    ret;
}
)";

static void second_module() {
    for (int round = 0; round < 3; round++) {
        CUmodule module;
        CUfunction twice;
        CUdeviceptr address;
        size_t bytes;
        bool is_right = DRIVER(cuModuleLoadData)(&module, SECOND) == CUDA_SUCCESS;
        is_right = is_right && DRIVER(cuModuleGetFunction)(&twice, module, "twice") == CUDA_SUCCESS;
        is_right = is_right && DRIVER(cuModuleGetGlobal)(&address, &bytes, module, "other") == CUDA_SUCCESS && bytes == 4;
        volatile unsigned *other = reinterpret_cast<unsigned *>(address);
        is_right = is_right && *other == 21;
        counter = round;
        is_right = is_right && DRIVER(cuLaunchKernel)(twice, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_SUCCESS;
        MUST(cudaDeviceSynchronize());
        is_right = is_right && *other == 42 && counter == round;
        is_right = is_right && DRIVER(cuModuleUnload)(module) == CUDA_SUCCESS;
        check("a module comes and goes", is_right);
    }
    CUlibrary library;
    bool is_right = DRIVER(cuLibraryLoadData)(&library, SECOND, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS;
    CUdeviceptr address = 0;
    size_t bytes = 0;
    is_right = is_right && DRIVER(cuLibraryGetManaged)(&address, &bytes, library, "other") == CUDA_SUCCESS && bytes == 4;
    check("a library", is_right && *reinterpret_cast<unsigned *>(address) == 21);
    say("no such variable", "%d", DRIVER(cuLibraryGetManaged)(&address, &bytes, library, "twice"));
    DRIVER(cuLibraryUnload)(library);
}

int main() {
    by_name();
    by_pointer();
    large();
    copies();
    streams();
    second_module();
    say("text", "%s", text);
    return 0;
}
