// What the driver of this machine makes of many calls of cuTensorMapEncodeTiled and its relatives, one call a line:
//
//     tiled type=7 rank=2 address=0x600008000000 sizes=1024,512 ... -> CODE BYTES
//
// BYTES is the map after a success, from the first byte on and without the zeros at the end; after an error it is
// "untouched" or "partial". A file of such lines in crates/cuda/client/src/tensor_map/samples becomes a test there.
//
// It needs cuda.h and no library: g++ -std=c++17 -x c++ -I CUDA/include samples.cu -ldl, or nvcc samples.cu.

#include <cuda.h>
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace {

enum class Function { Tiled, Im2col, Wide };

// Everything a call can be given. Arrays are always of full length, so that no rank makes the driver read past them.
struct Call {
    Function function = Function::Tiled;
    uint32_t type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    uint32_t rank = 2;
    uint64_t address = 0x600008000000ull;
    uint64_t sizes[8] = {1024, 512, 64, 32, 16, 1, 1, 1};
    uint64_t strides[8] = {2048, 2048 * 512, 2048ull * 512 * 64, 2048ull * 512 * 64 * 32, 16, 16, 16, 16};
    uint32_t box[8] = {64, 8, 2, 2, 2, 1, 1, 1};
    int32_t lower[8] = {};
    int32_t upper[8] = {};
    uint32_t channels = 64;
    uint32_t pixels = 32;
    uint32_t steps[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    uint32_t interleave = 0;
    uint32_t swizzle = 0;
    uint32_t promotion = 0;
    uint32_t fill = 0;
    uint32_t mode = 0;
    // How the call is spoilt: a null argument by its name in the line, where the map lies, what is missing.
    std::string null_argument;
    unsigned map_offset = 0;
    std::string when;
};

void *library;

template <typename F> F *symbol(const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "the driver has no %s\n", name);
        exit(1);
    }
    return reinterpret_cast<F *>(found);
}
#define DRIVER(name) symbol<decltype(name)>(#name)

struct Place {
    alignas(128) unsigned char bytes[512];

    explicit Place(int fill) { memset(bytes, fill, sizeof bytes); }
};

void print_answer(CUresult code, const unsigned char *map, const unsigned char *before) {
    bool touched = map && memcmp(map, before, 128) != 0;
    if (code != CUDA_SUCCESS) {
        printf(" -> %d %s\n", code, touched ? "partial" : "untouched");
        return;
    }
    int length = 128;
    while (length > 1 && map[length - 1] == 0) length--;
    printf(" -> 0 ");
    for (int i = 0; i < length; i++) printf("%02x", map[i]);
    printf("\n");
}

template <typename T> void print_array(const Call &call, const char *name, const T *values, int count) {
    printf(" %s=", name);
    if (call.null_argument == name) {
        printf("null");
        return;
    }
    for (int i = 0; i < count; i++) printf("%s%s", i ? "," : "", std::to_string(values[i]).c_str());
}

// Some arguments make the driver itself crash; such a call is printed as that.
sigjmp_buf before_the_call;

void crashed(int) { siglongjmp(before_the_call, 1); }

// Makes the call and prints its line.
void sample(const Call &call) {
    Place place(0xee);
    const Place before(0xee);
    auto given = [&](const char *name) { return call.null_argument != name; };
    unsigned char *map = given("map") ? place.bytes + call.map_offset : nullptr;
    auto *out = reinterpret_cast<CUtensorMap *>(map);
    auto *sizes = given("sizes") ? reinterpret_cast<const cuuint64_t *>(call.sizes) : nullptr;
    auto *strides = given("strides") ? reinterpret_cast<const cuuint64_t *>(call.strides) : nullptr;
    auto *steps = given("steps") ? call.steps : nullptr;
    auto *address = reinterpret_cast<void *>(call.address);
    auto type = static_cast<CUtensorMapDataType>(call.type);
    auto interleave = static_cast<CUtensorMapInterleave>(call.interleave);
    auto swizzle = static_cast<CUtensorMapSwizzle>(call.swizzle);
    auto promotion = static_cast<CUtensorMapL2promotion>(call.promotion);
    auto fill = static_cast<CUtensorMapFloatOOBfill>(call.fill);

    static const char *const names[] = {"tiled", "im2col", "wide"};
    const int rank = call.rank > 5 ? 5 : static_cast<int>(call.rank);
    const int spatial = rank > 2 ? rank - 2 : 0;
    printf("%s", names[static_cast<int>(call.function)]);
    if (!call.when.empty()) printf(" when=%s", call.when.c_str());
    if (!map) printf(" map=null");
    if (call.map_offset) printf(" map=%u", call.map_offset);
    printf(" type=%u rank=%u address=0x%llx", call.type, call.rank, static_cast<unsigned long long>(call.address));
    print_array(call, "sizes", call.sizes, rank);
    print_array(call, "strides", call.strides, rank ? rank - 1 : 0);
    if (sigsetjmp(before_the_call, 1)) {
        printf(" -> crash\n");
        return;
    }
    CUresult code;
    if (call.function == Function::Tiled) {
        print_array(call, "box", call.box, rank);
        auto *box = given("box") ? call.box : nullptr;
        code = DRIVER(cuTensorMapEncodeTiled)(out, type, call.rank, address, sizes, strides, box, steps, interleave,
                                              swizzle, promotion, fill);
    } else {
        print_array(call, "lower", call.lower, spatial);
        print_array(call, "upper", call.upper, spatial);
        printf(" channels=%u pixels=%u", call.channels, call.pixels);
        auto *lower = given("lower") ? call.lower : nullptr;
        auto *upper = given("upper") ? call.upper : nullptr;
        if (call.function == Function::Im2col) {
            code = DRIVER(cuTensorMapEncodeIm2col)(out, type, call.rank, address, sizes, strides, lower, upper,
                                                   call.channels, call.pixels, steps, interleave, swizzle, promotion,
                                                   fill);
        } else {
            printf(" mode=%u", call.mode);
            code = DRIVER(cuTensorMapEncodeIm2colWide)(
                out, type, call.rank, address, sizes, strides, call.lower[0], call.upper[0], call.channels,
                call.pixels, steps, interleave, static_cast<CUtensorMapIm2ColWideMode>(call.mode), swizzle, promotion,
                fill);
        }
    }
    print_array(call, "steps", call.steps, rank);
    printf(" interleave=%u swizzle=%u l2=%u fill=%u", call.interleave, call.swizzle, call.promotion, call.fill);
    print_answer(code, map, before.bytes);
}

// A call like another one, but for what `change` does to it.
void sample(const Call &base, const std::function<void(Call &)> &change) {
    Call call = base;
    change(call);
    sample(call);
}

// cuTensorMapReplaceAddress on a map; null and offset as above.
void sample_replace(const unsigned char *from, uint64_t address, bool null_map = false, unsigned offset = 0) {
    Place place(0xee);
    unsigned char *map = place.bytes + offset;
    memcpy(map, from, 128);
    printf("replace");
    if (null_map) printf(" map=null");
    if (offset) printf(" map=%u", offset);
    printf(" address=0x%llx from=", static_cast<unsigned long long>(address));
    for (int i = 0; i < 128; i++) printf("%02x", from[i]);
    auto *argument = null_map ? nullptr : reinterpret_cast<CUtensorMap *>(map);
    CUresult code = DRIVER(cuTensorMapReplaceAddress)(argument, reinterpret_cast<void *>(address));
    print_answer(code, map, from);
}

uint32_t element_bytes(uint32_t type) {
    static const uint32_t bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    return bytes[type];
}

const uint64_t EDGES[] = {1ull << 32, 1ull << 31, 255, 1};

void tensors(const Call &base) {
    // Not much larger ones: the driver reads the arrays before it looks at the rank.
    for (uint32_t rank = 0; rank <= 6; rank++) sample(base, [&](Call &c) { c.rank = rank; });
    for (uint64_t offset : {1, 4, 8, 16, 32, 48}) sample(base, [&](Call &c) { c.address += offset; });
    for (uint64_t address : {0ull, 16ull, 1ull << 40, 1ull << 47, 1ull << 48, 1ull << 49, 1ull << 56, 1ull << 57,
                             1ull << 63, ~15ull})
        sample(base, [&](Call &c) { c.address = address; });
    for (int dimension = 0; dimension < 5; dimension++) {
        for (uint64_t size : {0ull, (1ull << 32) + 1, 1ull << 33, ~0ull})
            sample(base, [&](Call &c) { c.rank = 5, c.sizes[dimension] = size; });
        for (uint64_t size : EDGES) sample(base, [&](Call &c) { c.rank = 5, c.sizes[dimension] = size; });
        for (uint32_t step : {0, 2, 3, 4, 7, 8, 9})
            sample(base, [&](Call &c) { c.rank = 5, c.steps[dimension] = step; });
        if (dimension == 4) break;
        for (uint64_t stride : {0ull, 8ull, 16ull, 24ull, 48ull, (1ull << 36) - 16, 1ull << 36, 0xa5ull << 32,
                                (1ull << 40) - 16, 1ull << 40, 1ull << 41, 1ull << 63})
            sample(base, [&](Call &c) { c.rank = 5, c.strides[dimension] = stride; });
    }
    // Steps that do not divide what they step through, several at once.
    sample(base, [](Call &c) { c.rank = 5, c.steps[1] = 3, c.steps[2] = 5, c.steps[3] = 7, c.steps[4] = 2; });
    // Strides that go down, as in a tensor whose dimensions were swapped, and rows that overlap.
    sample(base, [](Call &c) { c.rank = 4, c.strides[0] = 1 << 20, c.strides[1] = 2048, c.strides[2] = 4096; });
    sample(base, [](Call &c) { c.strides[0] = 1024; });
    sample(base, [](Call &c) { c.rank = 3, c.strides[0] = 0, c.strides[1] = 0; });
    for (uint32_t promotion = 0; promotion <= 4; promotion++)
        sample(base, [&](Call &c) { c.promotion = promotion; });
    for (uint32_t fill : {1u, 2u, ~0u}) sample(base, [&](Call &c) { c.fill = fill; });
    for (uint32_t type = 0; type <= 12; type++) {
        sample(base, [&](Call &c) {
            c.type = type, c.fill = 1, c.box[0] = c.channels = 16, c.strides[0] = 8192, c.strides[1] = 1 << 23;
            c.strides[2] = 1ull << 30;
        });
    }
    // Packed types, which Hopper should not have, with arguments that are right for them.
    for (uint32_t type : {13u, 14u, 15u, 16u, ~0u})
        for (uint32_t swizzle : {0, 3, 4, 6})
            sample(base, [&](Call &c) { c.type = type, c.swizzle = swizzle, c.box[0] = c.channels = 128; });
    for (const char *name : {"map", "sizes", "strides", "box", "lower", "upper", "steps"})
        sample(base, [&](Call &c) { c.null_argument = name; });
    for (unsigned offset : {8, 16, 32, 64, 96}) sample(base, [&](Call &c) { c.map_offset = offset; });
}

void boxes() {
    const Call base;
    for (int dimension = 0; dimension < 5; dimension++)
        for (uint32_t size : {0, 1, 4, 7, 8, 12, 255, 256, 257})
            sample(base, [&](Call &c) { c.rank = 5, c.box[dimension] = size; });
    // Rank 1 without strides, as nothing needs them.
    sample(base, [](Call &c) { c.rank = 1, c.null_argument = "strides"; });
    // A box that is larger than the tensor.
    sample(base, [](Call &c) { c.sizes[0] = 8, c.sizes[1] = 2; });
    // Boxes up to and past what shared memory holds, and past 32 and 40 bits.
    for (uint32_t rows : {64, 128, 227, 228, 229, 240, 256})
        sample(base, [&](Call &c) { c.type = 2, c.box[0] = 256, c.box[1] = rows; });
    for (uint32_t rank = 3; rank <= 5; rank++) {
        for (uint32_t type : {0, 8}) {
            sample(base, [&](Call &c) {
                c.type = type, c.rank = rank;
                for (uint32_t &size : c.box) size = 256;
            });
        }
    }
    for (uint32_t swizzle = 0; swizzle <= 7; swizzle++)
        for (uint32_t elements : {8, 16, 24, 32, 40, 64, 72})
            sample(base, [&](Call &c) { c.swizzle = swizzle, c.box[0] = elements; });
    for (uint32_t interleave = 1; interleave <= 3; interleave++) {
        for (uint32_t swizzle = 0; swizzle <= 4; swizzle++)
            for (uint32_t elements : {1, 4, 8, 16, 24, 32, 64, 128})
                sample(base, [&](Call &c) {
                    c.rank = 3, c.interleave = interleave, c.swizzle = swizzle, c.box[0] = elements;
                });
        auto interleaved = [&](Call &c) { c.rank = 4, c.interleave = interleave, c.swizzle = 1, c.box[0] = 8; };
        for (uint32_t rank = 1; rank <= 5; rank++)
            sample(base, [&](Call &c) { interleaved(c), c.rank = rank; });
        sample(base, [&](Call &c) { interleaved(c), c.address += 16; });
        for (int dimension = 0; dimension < 3; dimension++)
            sample(base, [&](Call &c) { interleaved(c), c.strides[dimension] += 16; });
        for (int dimension = 0; dimension < 4; dimension++)
            for (uint32_t step : {2, 3, 8, 9})
                sample(base, [&](Call &c) { interleaved(c), c.steps[dimension] = step; });
    }
}

void columns() {
    for (uint32_t rank = 3; rank <= 5; rank++) {
        Call base;
        base.function = Function::Im2col, base.rank = rank;
        const int spatial = static_cast<int>(rank) - 2;
        const int limit = rank == 3 ? 32768 : rank == 4 ? 128 : 16;
        sample(base);
        // Every offset alone, so that each shows its bits; the tensor is large enough for all of them.
        Call wide = base;
        for (uint64_t &size : wide.sizes) size = 1 << 20;
        for (int axis = 0; axis < spatial; axis++) {
            for (int offset : {1, 2, 5, limit - 1, limit, -1, -2, -limit, -limit - 1}) {
                sample(wide, [&](Call &c) { c.lower[axis] = offset; });
                sample(wide, [&](Call &c) { c.upper[axis] = offset; });
            }
            // Empty boxes: the size plus what the corners add or take is 1, 0, less.
            for (int beyond : {-1, 0, 1}) {
                sample(base, [&](Call &c) { c.sizes[axis + 1] = 8, c.upper[axis] = -8 - beyond; });
                sample(base, [&](Call &c) { c.sizes[axis + 1] = 8, c.lower[axis] = 8 + beyond; });
            }
        }
        sample(wide, [&](Call &c) {
            for (int axis = 0; axis < spatial; axis++) c.lower[axis] = -1 - axis, c.upper[axis] = 5 + axis;
        });
        for (uint32_t pixels : {0, 1, 2, 100, 512, 1023, 1024, 1025})
            sample(base, [&](Call &c) { c.channels = 8, c.pixels = pixels; });
        for (uint32_t channels : {0, 1, 4, 7, 8, 12, 16, 255, 256, 257})
            sample(base, [&](Call &c) { c.channels = channels; });
        for (uint32_t swizzle = 0; swizzle <= 4; swizzle++)
            for (uint32_t channels : {8, 16, 24, 32, 64, 72})
                sample(base, [&](Call &c) { c.swizzle = swizzle, c.channels = channels; });
        for (uint32_t interleave = 1; interleave <= 2; interleave++)
            for (uint32_t swizzle = 0; swizzle <= 3; swizzle++)
                for (uint32_t channels : {4, 8, 16, 24})
                    sample(base, [&](Call &c) {
                        c.interleave = interleave, c.swizzle = swizzle, c.channels = channels;
                    });
        for (uint32_t dimension = 0; dimension < rank; dimension++)
            for (uint32_t step : {0, 2, 3, 8, 9})
                sample(base, [&](Call &c) { c.steps[dimension] = step; });
        // Too large for shared memory.
        sample(base, [](Call &c) { c.type = 8, c.channels = 256, c.pixels = 1024; });
    }
    Call base;
    base.function = Function::Wide, base.rank = 4, base.swizzle = 3;
    sample(base);
    for (uint32_t mode = 0; mode <= 2; mode++)
        for (uint32_t swizzle : {0, 2, 3, 4}) sample(base, [&](Call &c) { c.mode = mode, c.swizzle = swizzle; });
    for (uint32_t rank : {2, 3, 5, 6}) sample(base, [&](Call &c) { c.rank = rank; });
    sample(base, [](Call &c) { c.null_argument = "sizes"; });
    sample(base, [](Call &c) { c.address += 8; });
}

void replacements() {
    Call call;
    alignas(128) unsigned char map[128] = {};
    for (uint32_t interleave : {0, 1, 2}) {
        call.rank = 3, call.box[0] = 8, call.swizzle = interleave == 2, call.interleave = interleave;
        auto code = DRIVER(cuTensorMapEncodeTiled)(
            reinterpret_cast<CUtensorMap *>(map), static_cast<CUtensorMapDataType>(call.type), call.rank,
            reinterpret_cast<void *>(call.address), reinterpret_cast<cuuint64_t *>(call.sizes),
            reinterpret_cast<cuuint64_t *>(call.strides), call.box, call.steps,
            static_cast<CUtensorMapInterleave>(interleave), static_cast<CUtensorMapSwizzle>(call.swizzle),
            CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
        if (code != CUDA_SUCCESS) {
            printf("# no map to move: interleave %u gives %d\n", interleave, code);
            continue;
        }
        for (uint64_t address : {0x600012345680ull, 0x600012345690ull, 0x600012345688ull, 0x600012345681ull, 0ull,
                                 1ull << 57, ~31ull})
            sample_replace(map, address);
        for (unsigned offset : {8, 16, 32, 64}) sample_replace(map, 0x600012345680ull, false, offset);
        sample_replace(map, 0x600012345680ull, true);
    }
    unsigned char nonsense[128];
    for (int value : {0x00, 0xff, 0x5a}) {
        memset(nonsense, value, sizeof nonsense);
        for (uint64_t address : {0x600012345680ull, 0x600012345690ull}) sample_replace(nonsense, address);
    }
}

// The same numbers in every run.
uint64_t next_random() {
    static uint64_t state = 0x9e3779b97f4a7c15ull;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}
uint64_t below(uint64_t end) { return next_random() % end; }

// Calls that keep every documented rule.
void random_calls(Function function, int count) {
    for (int i = 0; i < count; i++) {
        Call call;
        call.function = function;
        call.type = static_cast<uint32_t>(below(13));
        const bool is_float = call.type >= 6;
        const uint32_t bytes = element_bytes(call.type);
        call.rank = static_cast<uint32_t>(function == Function::Tiled ? 1 + below(5) : 3 + below(3));
        call.interleave = call.rank >= 3 && below(4) == 0 ? static_cast<uint32_t>(1 + below(2)) : 0;
        call.swizzle = call.interleave == 2 ? 1 : static_cast<uint32_t>(below(4));
        call.promotion = static_cast<uint32_t>(below(4));
        call.fill = is_float ? static_cast<uint32_t>(below(2)) : 0;
        call.address = below(1ull << 47) & ~31ull;
        const bool steps = below(3) == 0;
        uint64_t budget = 64 << 10;
        for (uint32_t d = 0; d < 5; d++) {
            call.sizes[d] = 1 + below(1ull << (8 + below(25)));
            call.strides[d] = below(1ull << (12 + below(29))) & ~31ull;
            call.steps[d] = steps ? static_cast<uint32_t>(1 + below(8)) : 1;
            const uint64_t most = budget < 256 ? budget : 256;
            call.box[d] = static_cast<uint32_t>(1 + below(most));
            if (d == 0) {
                const uint32_t span = call.swizzle && !call.interleave ? 16u << call.swizzle : 256;
                const uint32_t rows = span / 16 < 16 * bytes ? span / 16 : 16 * bytes;
                call.box[0] = call.channels = static_cast<uint32_t>((1 + below(rows)) * 16 / bytes);
                budget /= bytes;
            }
            budget /= call.box[d];
            if (budget == 0) budget = 1;
        }
        call.pixels = static_cast<uint32_t>(1 + below(1024));
        const int limit = call.rank == 3 ? 32768 : call.rank == 4 ? 128 : 16;
        for (int axis = 0; axis < 3; axis++) {
            call.lower[axis] = static_cast<int>(below(2 * limit)) - limit;
            call.upper[axis] = static_cast<int>(below(2 * limit)) - limit;
            if (function == Function::Im2col) call.sizes[axis + 1] += 2 * limit;
            if (call.sizes[axis + 1] > 1ull << 32) call.sizes[axis + 1] = 1ull << 32;
        }
        sample(call);
    }
}

void check(CUresult code, const char *what) {
    if (code == CUDA_SUCCESS) return;
    fprintf(stderr, "%s gives %d\n", what, code);
    exit(1);
}

void head(CUdevice device) {
    char name[128] = {}, line[256] = "unknown";
    int version = 0, major = 0, minor = 0;
    DRIVER(cuDriverGetVersion)(&version);
    DRIVER(cuDeviceGetName)(name, sizeof name, device);
    DRIVER(cuDeviceGetAttribute)(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    DRIVER(cuDeviceGetAttribute)(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    if (FILE *file = fopen("/proc/driver/nvidia/version", "r")) {
        if (!fgets(line, sizeof line, file)) strcpy(line, "unknown");
        line[strcspn(line, "\n")] = 0;
        fclose(file);
    }
    printf("# Made by tests/gpu/tensor-map/samples.cu on %s (%d.%d), CUDA %d\n# %s\n", name, major, minor, version,
           line);
}

} // namespace

int main() {
    // A call that crashes the driver must not take the lines before it along.
    setvbuf(stdout, nullptr, _IOLBF, 0);
    signal(SIGSEGV, crashed);
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    Call call;
    call.when = "before-init";
    sample(call);
    check(DRIVER(cuInit)(0), "cuInit");
    CUdevice device;
    check(DRIVER(cuDeviceGet)(&device, 0), "cuDeviceGet");
    head(device);
    call.when = "without-context";
    sample(call);
    CUcontext context;
    check(DRIVER(cuDevicePrimaryCtxRetain)(&context, device), "cuDevicePrimaryCtxRetain");
    check(DRIVER(cuCtxSetCurrent)(context), "cuCtxSetCurrent");

    Call tiles;
    tensors(tiles);
    Call images;
    images.function = Function::Im2col, images.rank = 4;
    tensors(images);
    boxes();
    columns();
    replacements();
    random_calls(Function::Tiled, 250);
    random_calls(Function::Im2col, 150);
    return 0;
}
