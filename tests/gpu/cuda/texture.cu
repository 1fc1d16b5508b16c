// Arrays, textures and surfaces: what is exact is compared with the CPU, what is filtered is told bit by bit, so that the
// outputs of a GPU at hand, of a remote one and of the software GPU can be compared.
#include "say.h"

#include <cuda_fp16.h>
#include <string.h>

#include <vector>

static bool all_right = true;

static void check(const char *key, bool is_right) {
    say(key, "%s", is_right ? "right" : "wrong");
    all_right = all_right && is_right;
}

static void told(const char *key, const std::vector<float> &values) {
    printf("= %s", key);
    for (float value : values) {
        unsigned bits;
        memcpy(&bits, &value, sizeof bits);
        printf(" %08x", bits);
    }
    printf("\n");
    fflush(stdout);
}

template <typename T>
struct Out {
    T *data;
    size_t count;
    explicit Out(size_t n) : count(n) { MUST(cudaMalloc(&data, n * sizeof(T))); }
    ~Out() { cudaFree(data); }
    std::vector<T> get() {
        std::vector<T> host(count);
        MUST(cudaMemcpy(host.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
        return host;
    }
};

static cudaTextureObject_t texture_of(const cudaResourceDesc &resource, cudaTextureFilterMode filter, cudaTextureAddressMode mode,
                                      bool normalized, cudaTextureReadMode read = cudaReadModeElementType, int srgb = 0) {
    cudaTextureDesc how = {};
    for (auto &one : how.addressMode) one = mode;
    how.filterMode = filter;
    how.readMode = read;
    how.normalizedCoords = normalized;
    how.sRGB = srgb;
    how.borderColor[0] = 0.25f;
    cudaTextureObject_t texture = 0;
    MUST(cudaCreateTextureObject(&texture, &resource, &how, nullptr));
    return texture;
}

static cudaResourceDesc of_array(cudaArray_t array) {
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    return resource;
}

__global__ void read_1d(cudaTextureObject_t t, float from, float step, float *out) {
    out[threadIdx.x] = tex1D<float>(t, from + step * threadIdx.x);
}
__global__ void read_2d(cudaTextureObject_t t, float from, float step, float y, float *out) {
    out[threadIdx.x] = tex2D<float>(t, from + step * threadIdx.x, y);
}
__global__ void read_2d_lod(cudaTextureObject_t t, float step, float *out) {
    out[threadIdx.x] = tex2DLod<float>(t, 0.3f, 0.6f, step * threadIdx.x);
}
__global__ void read_2d_grad(cudaTextureObject_t t, float step, float *out) {
    out[threadIdx.x] = tex2DGrad<float>(t, 0.3f, 0.6f, make_float2(step * threadIdx.x, 0), make_float2(0, step));
}
__global__ void read_3d(cudaTextureObject_t t, float from, float step, float *out) {
    float at = from + step * threadIdx.x;
    out[threadIdx.x] = tex3D<float>(t, at, at * 0.5f, at * 0.25f);
}
__global__ void read_layered(cudaTextureObject_t t, int layer, float *out) {
    out[threadIdx.x] = tex2DLayered<float>(t, threadIdx.x + 0.5f, 1.5f, layer);
}
__global__ void read_1d_layered(cudaTextureObject_t t, int layer, float *out) {
    out[threadIdx.x] = tex1DLayered<float>(t, threadIdx.x + 0.5f, layer);
}
__global__ void read_cube(cudaTextureObject_t t, const float3 *at, float *out) {
    float3 d = at[threadIdx.x];
    out[threadIdx.x] = texCubemap<float>(t, d.x, d.y, d.z);
}
__global__ void gather(cudaTextureObject_t t, float4 *out) {
    out[threadIdx.x] = tex2Dgather<float4>(t, threadIdx.x + 1.0f, 2.0f, 0);
}
template <typename T>
__global__ void fetch(cudaTextureObject_t t, T *out) {
    out[threadIdx.x] = tex1Dfetch<T>(t, int(threadIdx.x) - 1);
}
template <typename T>
__global__ void read_elements(cudaTextureObject_t t, T *out) {
    out[threadIdx.x] = tex2D<T>(t, threadIdx.x + 0.5f, 1.5f);
}
__global__ void surface_add(cudaSurfaceObject_t s, float by) {
    float value;
    surf2Dread(&value, s, threadIdx.x * 4, threadIdx.y);
    surf2Dwrite(value + by, s, threadIdx.x * 4, threadIdx.y);
}
__global__ void surface_edges(cudaSurfaceObject_t s, float *out) {
    int x = int(threadIdx.x) - 2;
    out[threadIdx.x] = surf2Dread<float>(s, x * 4, 0, cudaBoundaryModeClamp);
    out[threadIdx.x + 16] = surf2Dread<float>(s, x * 4, 0, cudaBoundaryModeZero);
}
__global__ void surface_3d(cudaSurfaceObject_t s) {
    surf3Dwrite(int(threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z), s, threadIdx.x * 4, threadIdx.y, threadIdx.z);
}
__global__ void surface_layered(cudaSurfaceObject_t s, int layer) {
    surf2DLayeredwrite(int(threadIdx.x + 1000 * layer), s, threadIdx.x * 4, 1, layer);
}

static const int WIDTH = 16, HEIGHT = 8;

static std::vector<float> ramp(size_t count) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; i++) values[i] = 0.1f + i * 0.37f;
    return values;
}

static void copies() {
    auto values = ramp(WIDTH * HEIGHT);
    std::vector<float> back(values.size());
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaArray_t one, two;
    MUST(cudaMallocArray(&one, &format, WIDTH, HEIGHT));
    MUST(cudaMallocArray(&two, &format, WIDTH, HEIGHT));
    size_t row = WIDTH * sizeof(float);
    MUST(cudaMemcpy2DToArray(one, 0, 0, values.data(), row, row, HEIGHT, cudaMemcpyHostToDevice));
    MUST(cudaMemcpy2DArrayToArray(two, 0, 0, one, 0, 0, row, HEIGHT));
    MUST(cudaMemcpy2DFromArray(back.data(), row, two, 0, 0, row, HEIGHT, cudaMemcpyDeviceToHost));
    check("copy-2d", back == values);
    float *pinned, *device;
    MUST(cudaMallocHost(&pinned, row * HEIGHT));
    MUST(cudaMalloc(&device, row * HEIGHT));
    MUST(cudaMemset(device, 0, row * HEIGHT));
    cudaStream_t stream;
    MUST(cudaStreamCreate(&stream));
    MUST(cudaMemcpy2DFromArrayAsync(device, row, one, 8, 2, row - 16, HEIGHT - 2, cudaMemcpyDeviceToDevice, stream));
    MUST(cudaMemcpyAsync(pinned, device, row * HEIGHT, cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
    check("copy-part", pinned[0] == values[2 * WIDTH + 2] && pinned[WIDTH] == values[3 * WIDTH + 2] && pinned[WIDTH - 4] == 0);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    MUST(cudaMemcpy2DToArrayAsync(two, 0, 0, pinned, row, row, HEIGHT, cudaMemcpyHostToDevice, stream));
    MUST(cudaMemcpy2DFromArrayAsync(device, row, two, 0, 0, row, HEIGHT, cudaMemcpyDeviceToDevice, stream));
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < WIDTH * HEIGHT; i++) pinned[i] = i * 3.0f;
    MUST(cudaGraphLaunch(exec, stream));
    MUST(cudaMemcpyAsync(back.data(), device, row * HEIGHT, cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
    check("copy-graph", back[5] == 15.0f && back[WIDTH * HEIGHT - 1] == (WIDTH * HEIGHT - 1) * 3.0f);
    cudaExtent extent = make_cudaExtent(8, 4, 3);
    cudaArray_t volume;
    MUST(cudaMalloc3DArray(&volume, &format, extent));
    auto solid = ramp(8 * 4 * 3);
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(solid.data(), 8 * sizeof(float), 8, 4);
    copy.dstArray = volume;
    copy.extent = extent;
    copy.kind = cudaMemcpyHostToDevice;
    MUST(cudaMemcpy3D(&copy));
    std::vector<float> solid_back(solid.size());
    copy = {};
    copy.srcArray = volume;
    copy.dstPtr = make_cudaPitchedPtr(solid_back.data(), 8 * sizeof(float), 8, 4);
    copy.extent = extent;
    copy.kind = cudaMemcpyDeviceToHost;
    MUST(cudaMemcpy3D(&copy));
    check("copy-3d", solid == solid_back);
    cudaChannelFormatDesc seen;
    cudaExtent size;
    unsigned flags;
    MUST(cudaArrayGetInfo(&seen, &size, &flags, volume));
    say("array-info", "%d %d %d %zu %zu %zu %u", seen.x, seen.y, seen.f, size.width, size.height, size.depth, flags);
    MUST(cudaFreeArray(volume));
    MUST(cudaFreeArray(one));
    MUST(cudaFreeArray(two));
    MUST(cudaFreeHost(pinned));
    MUST(cudaFree(device));
}

static cudaArray_t filled(const std::vector<float> &values, unsigned flags = 0) {
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaArray_t array;
    MUST(cudaMallocArray(&array, &format, WIDTH, HEIGHT, flags));
    size_t row = WIDTH * sizeof(float);
    MUST(cudaMemcpy2DToArray(array, 0, 0, values.data(), row, row, HEIGHT, cudaMemcpyHostToDevice));
    return array;
}

static void sampled() {
    auto values = ramp(WIDTH * HEIGHT);
    cudaArray_t array = filled(values, cudaArrayTextureGather);
    Out<float> out(40);
    const cudaTextureAddressMode modes[] = {cudaAddressModeWrap, cudaAddressModeClamp, cudaAddressModeMirror, cudaAddressModeBorder};
    const char *names[] = {"wrap", "clamp", "mirror", "border"};
    for (int i = 0; i < 4; i++) {
        char key[64];
        cudaTextureObject_t nearest = texture_of(of_array(array), cudaFilterModePoint, modes[i], true);
        read_2d<<<1, 40>>>(nearest, -1.0f + 0.5f / 16, 1.5f / 16, 0.3f, out.data);
        snprintf(key, sizeof key, "point-%s", names[i]);
        told(key, out.get());
        MUST(cudaDestroyTextureObject(nearest));
        cudaTextureObject_t linear = texture_of(of_array(array), cudaFilterModeLinear, modes[i], true);
        read_2d<<<1, 40>>>(linear, -1.013f, 0.0771f, 0.4137f, out.data);
        snprintf(key, sizeof key, "linear-%s", names[i]);
        told(key, out.get());
        MUST(cudaDestroyTextureObject(linear));
    }
    cudaTextureObject_t plain = texture_of(of_array(array), cudaFilterModePoint, cudaAddressModeClamp, false);
    read_2d<<<1, WIDTH>>>(plain, 0.5f, 1.0f, 2.5f, out.data);
    auto found = out.get();
    check("point", !memcmp(found.data(), &values[2 * WIDTH], WIDTH * sizeof(float)));
    cudaTextureObject_t fine = texture_of(of_array(array), cudaFilterModeLinear, cudaAddressModeClamp, false);
    read_2d<<<1, 40>>>(fine, 3.0f, 1.0f / 1024, 2.5f, out.data);
    told("linear-steps", out.get());
    read_2d<<<1, 40>>>(fine, 3.0f, 0.0913f, 2.71f, out.data);
    told("linear-2d", out.get());
    Out<float4> four(8);
    gather<<<1, 8>>>(plain, four.data);
    auto gathered = four.get();
    check("gather", gathered[2].x == values[2 * WIDTH + 2] && gathered[2].y == values[2 * WIDTH + 3] &&
                        gathered[2].z == values[WIDTH + 3] && gathered[2].w == values[WIDTH + 2]);
    MUST(cudaDestroyTextureObject(plain));
    MUST(cudaDestroyTextureObject(fine));
    MUST(cudaFreeArray(array));
}

static void shapes() {
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    Out<float> out(24);
    cudaArray_t line;
    auto values = ramp(WIDTH);
    MUST(cudaMallocArray(&line, &format, WIDTH));
    MUST(cudaMemcpy2DToArray(line, 0, 0, values.data(), WIDTH * 4, WIDTH * 4, 1, cudaMemcpyHostToDevice));
    cudaTextureObject_t t = texture_of(of_array(line), cudaFilterModeLinear, cudaAddressModeClamp, false);
    read_1d<<<1, 24>>>(t, -0.3f, 0.713f, out.data);
    told("linear-1d", out.get());
    MUST(cudaDestroyTextureObject(t));
    MUST(cudaFreeArray(line));

    cudaExtent extent = make_cudaExtent(8, 4, 6);
    auto solid = ramp(8 * 4 * 6);
    for (unsigned flags : {0u, unsigned(cudaArrayLayered)}) {
        cudaArray_t array;
        MUST(cudaMalloc3DArray(&array, &format, extent, flags));
        cudaMemcpy3DParms copy = {};
        copy.srcPtr = make_cudaPitchedPtr(solid.data(), 8 * 4, 8, 4);
        copy.dstArray = array;
        copy.extent = extent;
        copy.kind = cudaMemcpyHostToDevice;
        MUST(cudaMemcpy3D(&copy));
        cudaTextureObject_t texture = texture_of(of_array(array), flags ? cudaFilterModePoint : cudaFilterModeLinear, cudaAddressModeClamp, false);
        if (flags) {
            read_layered<<<1, 8>>>(texture, 4, out.data);
            auto found = out.get();
            check("layered", !memcmp(found.data(), &solid[4 * 32 + 8], 8 * 4));
        } else {
            read_3d<<<1, 24>>>(texture, 0.2f, 0.31f, out.data);
            told("linear-3d", out.get());
        }
        MUST(cudaDestroyTextureObject(texture));
        MUST(cudaFreeArray(array));
    }

    cudaArray_t lines;
    MUST(cudaMalloc3DArray(&lines, &format, make_cudaExtent(8, 0, 5), cudaArrayLayered));
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(solid.data(), 8 * 4, 8, 1);
    copy.dstArray = lines;
    copy.extent = make_cudaExtent(8, 1, 5);
    copy.kind = cudaMemcpyHostToDevice;
    MUST(cudaMemcpy3D(&copy));
    t = texture_of(of_array(lines), cudaFilterModePoint, cudaAddressModeClamp, false);
    read_1d_layered<<<1, 8>>>(t, 3, out.data);
    auto found = out.get();
    check("layered-1d", !memcmp(found.data(), &solid[3 * 8], 8 * 4));
    MUST(cudaDestroyTextureObject(t));
    MUST(cudaFreeArray(lines));

    cudaArray_t cube;
    MUST(cudaMalloc3DArray(&cube, &format, make_cudaExtent(4, 4, 6), cudaArrayCubemap));
    copy = {};
    copy.srcPtr = make_cudaPitchedPtr(solid.data(), 4 * 4, 4, 4);
    copy.dstArray = cube;
    copy.extent = make_cudaExtent(4, 4, 6);
    copy.kind = cudaMemcpyHostToDevice;
    MUST(cudaMemcpy3D(&copy));
    float3 directions[12];
    for (int i = 0; i < 6; i++) {
        float sign = i % 2 ? -1.0f : 1.0f, a = 0.1f + 0.12f * i, b = 0.7f - 0.21f * i;
        directions[i] = i < 2 ? make_float3(sign, a, b) : i < 4 ? make_float3(a, sign, b) : make_float3(a, b, sign);
        directions[i + 6] = make_float3(-directions[i].x * 2, directions[i].y * 2, directions[i].z * 2);
    }
    Out<float3> at(12);
    MUST(cudaMemcpy(at.data, directions, sizeof directions, cudaMemcpyHostToDevice));
    for (auto filter : {cudaFilterModePoint, cudaFilterModeLinear}) {
        t = texture_of(of_array(cube), filter, cudaAddressModeClamp, true);
        read_cube<<<1, 12>>>(t, at.data, out.data);
        found = out.get();
        found.resize(12);
        told(filter == cudaFilterModePoint ? "cube-point" : "cube-linear", found);
        MUST(cudaDestroyTextureObject(t));
    }
    MUST(cudaFreeArray(cube));
}

static void levels() {
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaMipmappedArray_t mipmap;
    MUST(cudaMallocMipmappedArray(&mipmap, &format, make_cudaExtent(16, 16, 0), 4));
    for (unsigned level = 0; level < 4; level++) {
        cudaArray_t array;
        MUST(cudaGetMipmappedArrayLevel(&array, mipmap, level));
        int size = 16 >> level;
        std::vector<float> values(size * size);
        for (int i = 0; i < size * size; i++) values[i] = level * 1000.0f + i;
        MUST(cudaMemcpy2DToArray(array, 0, 0, values.data(), size * 4, size * 4, size, cudaMemcpyHostToDevice));
    }
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeMipmappedArray;
    resource.res.mipmap.mipmap = mipmap;
    Out<float> out(24);
    for (auto filter : {cudaFilterModePoint, cudaFilterModeLinear}) {
        cudaTextureDesc how = {};
        how.addressMode[0] = how.addressMode[1] = cudaAddressModeClamp;
        how.filterMode = how.mipmapFilterMode = filter;
        how.normalizedCoords = 1;
        how.maxMipmapLevelClamp = 3;
        cudaTextureObject_t texture;
        MUST(cudaCreateTextureObject(&texture, &resource, &how, nullptr));
        read_2d_lod<<<1, 24>>>(texture, 0.17f, out.data);
        told(filter == cudaFilterModePoint ? "lod-point" : "lod-linear", out.get());
        read_2d_grad<<<1, 24>>>(texture, 0.03f, out.data);
        told(filter == cudaFilterModePoint ? "grad-point" : "grad-linear", out.get());
        MUST(cudaDestroyTextureObject(texture));
    }
    MUST(cudaFreeMipmappedArray(mipmap));
}

template <typename T>
static void one_format(const char *name, T first) {
    T values[2 * 8];
    for (int i = 0; i < 16; i++) memset(&values[i], i * 17 + 3, sizeof(T));
    values[9] = first;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<T>();
    cudaArray_t array;
    MUST(cudaMallocArray(&array, &format, 8, 2));
    MUST(cudaMemcpy2DToArray(array, 0, 0, values, sizeof values / 2, sizeof values / 2, 2, cudaMemcpyHostToDevice));
    cudaTextureObject_t texture = texture_of(of_array(array), cudaFilterModePoint, cudaAddressModeClamp, false);
    Out<T> out(8);
    read_elements<T><<<1, 8>>>(texture, out.data);
    auto found = out.get();
    char key[64];
    snprintf(key, sizeof key, "format-%s", name);
    check(key, !memcmp(found.data(), values + 8, sizeof values / 2));
    MUST(cudaDestroyTextureObject(texture));
    MUST(cudaFreeArray(array));
}

static void formats() {
    one_format<unsigned char>("u8", 255);
    one_format<signed char>("s8", -128);
    one_format<short>("s16", -32768);
    one_format<unsigned short>("u16", 65535);
    one_format<int>("s32", -1);
    one_format<uchar4>("u8x4", make_uchar4(1, 2, 3, 255));
    one_format<short2>("s16x2", make_short2(-1, 1));
    one_format<int4>("s32x4", make_int4(-1, 1, -2, 2));
    one_format<float2>("f32x2", make_float2(-1.5f, 1e30f));
    unsigned char bytes[8 * 4];
    for (int i = 0; i < 32; i++) bytes[i] = i * 8 + 5;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<uchar4>();
    cudaArray_t array;
    MUST(cudaMallocArray(&array, &format, 8, 1));
    MUST(cudaMemcpy2DToArray(array, 0, 0, bytes, 32, 32, 1, cudaMemcpyHostToDevice));
    for (int srgb : {0, 1}) {
        for (auto filter : {cudaFilterModePoint, cudaFilterModeLinear}) {
            cudaTextureObject_t texture = texture_of(of_array(array), filter, cudaAddressModeClamp, false, cudaReadModeNormalizedFloat, srgb);
            Out<float4> out(8);
            read_elements<float4><<<1, 8>>>(texture, out.data);
            auto found = out.get();
            char key[64];
            snprintf(key, sizeof key, "normalized-%s-%s", srgb ? "srgb" : "plain", filter == cudaFilterModePoint ? "point" : "linear");
            told(key, std::vector<float>(&found[0].x, &found[0].x + 32));
            MUST(cudaDestroyTextureObject(texture));
        }
    }
    MUST(cudaFreeArray(array));
}

static void memory() {
    auto values = ramp(64);
    float *device;
    size_t pitch;
    MUST(cudaMalloc(&device, 256));
    MUST(cudaMemcpy(device, values.data(), 256, cudaMemcpyHostToDevice));
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = device;
    resource.res.linear.desc = cudaCreateChannelDesc<float>();
    resource.res.linear.sizeInBytes = 40 * 4;
    cudaTextureObject_t texture = texture_of(resource, cudaFilterModePoint, cudaAddressModeClamp, false);
    Out<float> out(64);
    fetch<float><<<1, 64>>>(texture, out.data);
    auto found = out.get();
    check("fetch", found[0] == 0 && !memcmp(&found[1], values.data(), 40 * 4) && found[41] == 0 && found[63] == 0);
    cudaResourceDesc asked;
    MUST(cudaGetTextureObjectResourceDesc(&asked, texture));
    check("described", asked.resType == cudaResourceTypeLinear && asked.res.linear.devPtr == device && asked.res.linear.sizeInBytes == 160);
    MUST(cudaDestroyTextureObject(texture));
    MUST(cudaFree(device));
    MUST(cudaMallocPitch(&device, &pitch, WIDTH * 4, 4));
    MUST(cudaMemcpy2D(device, pitch, values.data(), WIDTH * 4, WIDTH * 4, 4, cudaMemcpyHostToDevice));
    resource = {};
    resource.resType = cudaResourceTypePitch2D;
    resource.res.pitch2D.devPtr = device;
    resource.res.pitch2D.desc = cudaCreateChannelDesc<float>();
    resource.res.pitch2D.width = WIDTH;
    resource.res.pitch2D.height = 4;
    resource.res.pitch2D.pitchInBytes = pitch;
    texture = texture_of(resource, cudaFilterModeLinear, cudaAddressModeClamp, false);
    read_2d<<<1, 64>>>(texture, 0.5f, 0.2471f, 2.25f, out.data);
    told("linear-pitch", out.get());
    MUST(cudaDestroyTextureObject(texture));
    MUST(cudaFree(device));
}

static void surfaces() {
    auto values = ramp(WIDTH * HEIGHT);
    cudaArray_t array = filled(values, cudaArraySurfaceLoadStore);
    cudaResourceDesc resource = of_array(array);
    cudaSurfaceObject_t surface;
    MUST(cudaCreateSurfaceObject(&surface, &resource));
    surface_add<<<1, dim3(WIDTH, HEIGHT)>>>(surface, 2.0f);
    std::vector<float> back(values.size());
    MUST(cudaMemcpy2DFromArray(back.data(), WIDTH * 4, array, 0, 0, WIDTH * 4, HEIGHT, cudaMemcpyDeviceToHost));
    bool is_right = true;
    for (size_t i = 0; i < values.size(); i++) is_right = is_right && back[i] == values[i] + 2.0f;
    check("surface", is_right);
    Out<float> out(32);
    MUST(cudaMemset(out.data, 0, 128));
    surface_edges<<<1, 16>>>(surface, out.data);
    auto found = out.get();
    check("surface-edges", found[0] == back[0] && found[2] == back[0] && found[15] == back[13] && found[16] == 0 && found[18] == back[0]);
    MUST(cudaDestroySurfaceObject(surface));
    MUST(cudaFreeArray(array));
    cudaChannelFormatDesc format = cudaCreateChannelDesc<int>();
    for (unsigned flags : {0u, unsigned(cudaArrayLayered)}) {
        cudaExtent extent = make_cudaExtent(8, 4, 3);
        MUST(cudaMalloc3DArray(&array, &format, extent, flags | cudaArraySurfaceLoadStore));
        resource = of_array(array);
        MUST(cudaCreateSurfaceObject(&surface, &resource));
        if (flags) {
            for (int layer = 0; layer < 3; layer++) surface_layered<<<1, 8>>>(surface, layer);
        } else {
            surface_3d<<<1, dim3(8, 4, 3)>>>(surface);
        }
        int cells[3][4][8];
        cudaMemcpy3DParms copy = {};
        copy.srcArray = array;
        copy.dstPtr = make_cudaPitchedPtr(cells, 8 * 4, 8, 4);
        copy.extent = extent;
        copy.kind = cudaMemcpyDeviceToHost;
        MUST(cudaMemcpy3D(&copy));
        check(flags ? "surface-layered" : "surface-3d", flags ? cells[2][1][5] == 2005 : cells[2][3][7] == 237);
        MUST(cudaDestroySurfaceObject(surface));
        MUST(cudaFreeArray(array));
    }
}

static void mistakes() {
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaArray_t array = nullptr;
    TELL("no-width", cudaMallocArray(&array, &format, 0, 0));
    TELL("too-wide", cudaMallocArray(&array, &format, 1 << 20, 4));
    cudaChannelFormatDesc odd = cudaCreateChannelDesc(32, 32, 32, 0, cudaChannelFormatKindFloat);
    TELL("three-channels", cudaMallocArray(&array, &odd, 16, 4));
    TELL("no-cube", cudaMalloc3DArray(&array, &format, make_cudaExtent(8, 4, 6), cudaArrayCubemap));
    MUST(cudaMallocArray(&array, &format, 16, 4));
    float values[64] = {};
    TELL("past-the-row", cudaMemcpy2DToArray(array, 32, 0, values, 64, 64, 1, cudaMemcpyHostToDevice));
    TELL("past-the-rows", cudaMemcpy2DToArray(array, 0, 3, values, 64, 64, 2, cudaMemcpyHostToDevice));
    cudaResourceDesc resource = of_array(array);
    cudaSurfaceObject_t surface = 0;
    TELL("no-surface-flag", cudaCreateSurfaceObject(&surface, &resource));
    MUST(cudaFreeArray(array));
    cudaGetLastError();
}

int main() {
    copies();
    sampled();
    shapes();
    levels();
    formats();
    memory();
    surfaces();
    mistakes();
    return all_right ? 0 : 1;
}
