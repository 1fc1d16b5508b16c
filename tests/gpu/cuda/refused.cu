// What remote GPUs are known to refuse: textures, surfaces, arrays, mapped memory, sharing with other processes.
// Natively all of it works; the remote answer must be an honest error, never a wrong result.
#include "say.h"

__global__ void sample(cudaTextureObject_t texture, float *out) { out[threadIdx.x] = tex2D<float>(texture, threadIdx.x + 0.5f, 1.5f); }
__global__ void draw(cudaSurfaceObject_t surface) { surf2Dwrite(float(threadIdx.x), surface, threadIdx.x * 4, 0); }
__global__ void increment(int *data) { data[threadIdx.x] += threadIdx.x; }

static void arrays() {
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaArray_t array = nullptr;
    cudaError_t made = cudaMallocArray(&array, &format, 64, 4, cudaArraySurfaceLoadStore);
    TELL("array", made);
    if (made != cudaSuccess) {
        cudaGetLastError();
        say("texture", "no array");
        say("surface", "no array");
        return;
    }
    float values[256], found[64], *out;
    for (int i = 0; i < 256; i++) values[i] = i * 0.25f;
    MUST(cudaMemcpy2DToArray(array, 0, 0, values, 256, 256, 4, cudaMemcpyHostToDevice));
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaTextureDesc how = {};
    how.readMode = cudaReadModeElementType;
    how.filterMode = cudaFilterModePoint;
    cudaTextureObject_t texture = 0;
    cudaError_t bound = cudaCreateTextureObject(&texture, &resource, &how, nullptr);
    MUST(cudaMalloc(&out, sizeof found));
    if (bound == cudaSuccess) {
        sample<<<1, 64>>>(texture, out);
        MUST(cudaMemcpy(found, out, sizeof found, cudaMemcpyDeviceToHost));
        say("texture", "%llx", mixed(found, 64));
    } else {
        TELL("texture", bound);
    }
    cudaSurfaceObject_t surface = 0;
    bound = cudaCreateSurfaceObject(&surface, &resource);
    if (bound == cudaSuccess) {
        draw<<<1, 64>>>(surface);
        MUST(cudaMemcpy2DFromArray(found, 256, array, 0, 0, 256, 1, cudaMemcpyDeviceToHost));
        say("surface", "%llx", mixed(found, 64));
    } else {
        TELL("surface", bound);
    }
}

static void mapped() {
    int *host = nullptr, *device = nullptr;
    cudaError_t made = cudaHostAlloc(&host, 64 * sizeof(int), cudaHostAllocMapped);
    TELL("mapped-allocation", made);
    cudaError_t seen = made == cudaSuccess ? cudaHostGetDevicePointer(&device, host, 0) : made;
    if (seen != cudaSuccess) {
        TELL("mapped", seen);
        cudaGetLastError();
        return;
    }
    for (int i = 0; i < 64; i++) host[i] = 10 * i;
    increment<<<1, 64>>>(device);
    cudaError_t done = cudaDeviceSynchronize();
    if (done == cudaSuccess) {
        say("mapped", "%llx", mixed(host, 64));
    } else {
        TELL("mapped", done);
    }
}

static void ipc() {
    int *data;
    MUST(cudaMalloc(&data, 1 << 20));
    cudaIpcMemHandle_t handle;
    TELL("ipc", cudaIpcGetMemHandle(&handle, data));
    cudaGetLastError();
    MUST(cudaFree(data));
}

int main() {
    arrays();
    ipc();
    mapped();
    return 0;
}
