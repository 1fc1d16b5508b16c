/* An ordinary CUDA driver program: it loads libcuda.so.1, adds two vectors on the GPU, paints the Mandelbrot set there,
 * and checks both against the CPU. It needs no header of CUDA, so it builds anywhere.
 *
 * With the argument `slowly` it paints row by row and takes its time. The GPU keeps a sum over all rows in its memory from
 * the first row to the last: a program that lost it would end with a wrong sum. */

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int CUresult;
typedef int CUdevice;
typedef void *CUcontext;
typedef void *CUmodule;
typedef void *CUfunction;
typedef void *CUstream;
typedef unsigned long long CUdeviceptr;

static CUresult (*p_cuInit)(unsigned);
static CUresult (*p_cuDeviceGetCount)(int *);
static CUresult (*p_cuDeviceGet)(CUdevice *, int);
static CUresult (*p_cuDeviceGetName)(char *, int, CUdevice);
static CUresult (*p_cuDeviceTotalMem)(size_t *, CUdevice);
static CUresult (*p_cuDevicePrimaryCtxRetain)(CUcontext *, CUdevice);
static CUresult (*p_cuDevicePrimaryCtxRelease)(CUdevice);
static CUresult (*p_cuCtxSetCurrent)(CUcontext);
static CUresult (*p_cuCtxSynchronize)(void);
static CUresult (*p_cuModuleLoadData)(CUmodule *, const void *);
static CUresult (*p_cuModuleUnload)(CUmodule);
static CUresult (*p_cuModuleGetFunction)(CUfunction *, CUmodule, const char *);
static CUresult (*p_cuMemAlloc)(CUdeviceptr *, size_t);
static CUresult (*p_cuMemFree)(CUdeviceptr);
static CUresult (*p_cuMemcpyHtoD)(CUdeviceptr, const void *, size_t);
static CUresult (*p_cuMemcpyDtoH)(void *, CUdeviceptr, size_t);
static CUresult (*p_cuLaunchKernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                    CUstream, void **, void **);
static CUresult (*p_cuGetErrorString)(CUresult, const char **);

static void fail(const char *what, CUresult code)
{
    const char *text = "unknown error";
    if (p_cuGetErrorString)
        p_cuGetErrorString(code, &text);
    fprintf(stderr, "%s: %s (%d)\n", what, text, code);
    exit(1);
}

#define MUST(call)                 \
    do {                           \
        CUresult code_ = p_##call; \
        if (code_)                 \
            fail(#call, code_);    \
    } while (0)

static void *find(void *library, const char *name)
{
    void *symbol = dlsym(library, name);
    if (!symbol) {
        fprintf(stderr, "libcuda.so.1 has no %s\n", name);
        exit(1);
    }
    return symbol;
}

#define FIND(name, symbol) (*(void **)&p_##name = find(library, symbol))

static void load_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    FIND(cuGetErrorString, "cuGetErrorString");
    FIND(cuInit, "cuInit");
    FIND(cuDeviceGetCount, "cuDeviceGetCount");
    FIND(cuDeviceGet, "cuDeviceGet");
    FIND(cuDeviceGetName, "cuDeviceGetName");
    FIND(cuDeviceTotalMem, "cuDeviceTotalMem_v2");
    FIND(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
    FIND(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2");
    FIND(cuCtxSetCurrent, "cuCtxSetCurrent");
    FIND(cuCtxSynchronize, "cuCtxSynchronize");
    FIND(cuModuleLoadData, "cuModuleLoadData");
    FIND(cuModuleUnload, "cuModuleUnload");
    FIND(cuModuleGetFunction, "cuModuleGetFunction");
    FIND(cuMemAlloc, "cuMemAlloc_v2");
    FIND(cuMemFree, "cuMemFree_v2");
    FIND(cuMemcpyHtoD, "cuMemcpyHtoD_v2");
    FIND(cuMemcpyDtoH, "cuMemcpyDtoH_v2");
    FIND(cuLaunchKernel, "cuLaunchKernel");
}

static const char ptx[] =
    ".version 7.0\n"
    ".target sm_70\n"
    ".address_size 64\n"
    /* c[i] = a[i] + b[i] */
    ".visible .entry add(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u32 n)\n"
    "{\n"
    "    .reg .pred %p<2>;\n"
    "    .reg .b32 %r<6>;\n"
    "    .reg .f32 %f<4>;\n"
    "    .reg .b64 %rd<8>;\n"
    "    ld.param.u64 %rd1, [pa];\n"
    "    ld.param.u64 %rd2, [pb];\n"
    "    ld.param.u64 %rd3, [pc];\n"
    "    ld.param.u32 %r1, [n];\n"
    "    mov.u32 %r2, %ctaid.x;\n"
    "    mov.u32 %r3, %ntid.x;\n"
    "    mov.u32 %r4, %tid.x;\n"
    "    mad.lo.s32 %r5, %r2, %r3, %r4;\n"
    "    setp.ge.u32 %p1, %r5, %r1;\n"
    "    @%p1 bra DONE;\n"
    "    mul.wide.u32 %rd4, %r5, 4;\n"
    "    add.s64 %rd5, %rd1, %rd4;\n"
    "    add.s64 %rd6, %rd2, %rd4;\n"
    "    add.s64 %rd7, %rd3, %rd4;\n"
    "    ld.global.f32 %f1, [%rd5];\n"
    "    ld.global.f32 %f2, [%rd6];\n"
    "    add.rn.f32 %f3, %f1, %f2;\n"
    "    st.global.f32 [%rd7], %f3;\n"
    "DONE:\n"
    "    ret;\n"
    "}\n"
    /* Iterations until the point leaves the circle, one thread a point. */
    ".visible .entry mandelbrot(.param .u64 out, .param .u32 width, .param .u32 height, .param .u32 limit)\n"
    "{\n"
    "    .reg .pred %p<4>;\n"
    "    .reg .b32 %r<12>;\n"
    "    .reg .f32 %f<20>;\n"
    "    .reg .b64 %rd<4>;\n"
    "    ld.param.u64 %rd1, [out];\n"
    "    ld.param.u32 %r1, [width];\n"
    "    ld.param.u32 %r2, [height];\n"
    "    ld.param.u32 %r3, [limit];\n"
    "    mov.u32 %r4, %ctaid.x;\n"
    "    mov.u32 %r5, %ntid.x;\n"
    "    mov.u32 %r6, %tid.x;\n"
    "    mad.lo.s32 %r7, %r4, %r5, %r6;\n"
    "    mul.lo.s32 %r8, %r1, %r2;\n"
    "    setp.ge.u32 %p1, %r7, %r8;\n"
    "    @%p1 bra DONE;\n"
    "    rem.u32 %r9, %r7, %r1;\n"
    "    div.u32 %r10, %r7, %r1;\n"
    "    cvt.rn.f32.u32 %f1, %r9;\n"
    "    cvt.rn.f32.u32 %f2, %r10;\n"
    "    cvt.rn.f32.u32 %f3, %r1;\n"
    "    cvt.rn.f32.u32 %f4, %r2;\n"
    "    div.rn.f32 %f5, %f1, %f3;\n"
    "    mul.rn.f32 %f5, %f5, 0f40400000;\n" /* 3.0 */
    "    sub.rn.f32 %f5, %f5, 0f40000000;\n" /* 2.0: re = 3 x / width - 2 */
    "    div.rn.f32 %f6, %f2, %f4;\n"
    "    mul.rn.f32 %f6, %f6, 0f40200000;\n" /* 2.5 */
    "    sub.rn.f32 %f6, %f6, 0f3FA00000;\n" /* 1.25: im = 2.5 y / height - 1.25 */
    "    mov.f32 %f7, 0f00000000;\n"
    "    mov.f32 %f8, 0f00000000;\n"
    "    mov.u32 %r11, 0;\n"
    "LOOP:\n"
    "    setp.ge.u32 %p2, %r11, %r3;\n"
    "    @%p2 bra STORE;\n"
    "    mul.rn.f32 %f9, %f7, %f7;\n"
    "    mul.rn.f32 %f10, %f8, %f8;\n"
    "    add.rn.f32 %f11, %f9, %f10;\n"
    "    setp.gt.f32 %p3, %f11, 0f40800000;\n" /* 4.0 */
    "    @%p3 bra STORE;\n"
    "    mul.rn.f32 %f12, %f7, %f8;\n"
    "    add.rn.f32 %f12, %f12, %f12;\n"
    "    add.rn.f32 %f8, %f12, %f6;\n"
    "    sub.rn.f32 %f13, %f9, %f10;\n"
    "    add.rn.f32 %f7, %f13, %f5;\n"
    "    add.u32 %r11, %r11, 1;\n"
    "    bra LOOP;\n"
    "STORE:\n"
    "    mul.wide.u32 %rd2, %r7, 4;\n"
    "    add.s64 %rd3, %rd1, %rd2;\n"
    "    st.global.u32 [%rd3], %r11;\n"
    "DONE:\n"
    "    ret;\n"
    "}\n"
    /* sum += the points of one row; one thread a point. */
    ".visible .entry gather(.param .u64 points, .param .u64 sum, .param .u32 first, .param .u32 width)\n"
    "{\n"
    "    .reg .pred %p<2>;\n"
    "    .reg .b32 %r<6>;\n"
    "    .reg .b64 %rd<6>;\n"
    "    ld.param.u64 %rd1, [points];\n"
    "    ld.param.u64 %rd2, [sum];\n"
    "    ld.param.u32 %r1, [first];\n"
    "    ld.param.u32 %r2, [width];\n"
    "    mov.u32 %r3, %tid.x;\n"
    "    setp.ge.u32 %p1, %r3, %r2;\n"
    "    @%p1 bra OUT;\n"
    "    add.u32 %r4, %r3, %r1;\n"
    "    mul.wide.u32 %rd3, %r4, 4;\n"
    "    add.s64 %rd4, %rd1, %rd3;\n"
    "    ld.global.u32 %r5, [%rd4];\n"
    "    red.global.add.u32 [%rd2], %r5;\n"
    "OUT:\n"
    "    ret;\n"
    "}\n";

enum { COUNT = 1 << 20, WIDTH = 72, HEIGHT = 24, LIMIT = 200 };

static unsigned iterations(unsigned at)
{
    volatile float re = (float)(at % WIDTH) / (float)WIDTH * 3.0f;
    volatile float im = (float)(at / WIDTH) / (float)HEIGHT * 2.5f;
    float cr = re - 2.0f, ci = im - 1.25f, x = 0.0f, y = 0.0f;
    unsigned count = 0;
    while (count < LIMIT) {
        float xx = x * x, yy = y * y;
        if (xx + yy > 4.0f)
            break;
        float xy = x * y;
        y = xy + xy + ci;
        x = xx - yy + cr;
        count++;
    }
    return count;
}

static double milliseconds(void)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

static void add_vectors(CUmodule module)
{
    float *a = malloc(COUNT * sizeof *a), *b = malloc(COUNT * sizeof *b), *c = malloc(COUNT * sizeof *c);
    if (!a || !b || !c)
        exit(1);
    for (unsigned at = 0; at < COUNT; at++) {
        a[at] = (float)at * 0.5f;
        b[at] = (float)(COUNT - at);
    }
    CUdeviceptr da, db, dc;
    CUfunction add;
    unsigned n = COUNT;
    double start = milliseconds();
    MUST(cuModuleGetFunction(&add, module, "add"));
    MUST(cuMemAlloc(&da, COUNT * sizeof *a));
    MUST(cuMemAlloc(&db, COUNT * sizeof *b));
    MUST(cuMemAlloc(&dc, COUNT * sizeof *c));
    MUST(cuMemcpyHtoD(da, a, COUNT * sizeof *a));
    MUST(cuMemcpyHtoD(db, b, COUNT * sizeof *b));
    void *arguments[] = {&da, &db, &dc, &n};
    MUST(cuLaunchKernel(add, COUNT / 256, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL));
    MUST(cuMemcpyDtoH(c, dc, COUNT * sizeof *c));
    double took = milliseconds() - start;
    for (unsigned at = 0; at < COUNT; at++) {
        if (c[at] != a[at] + b[at]) {
            fprintf(stderr, "element %u is %g, not %g\n", at, c[at], a[at] + b[at]);
            exit(1);
        }
    }
    MUST(cuMemFree(da));
    MUST(cuMemFree(db));
    MUST(cuMemFree(dc));
    free(a);
    free(b);
    free(c);
    printf("added %d numbers in %.1f ms, every sum right (12 MiB went over and back)\n", COUNT, took);
}

static void paint(CUmodule module)
{
    static unsigned counts[WIDTH * HEIGHT];
    static const char shades[] = " .:-=+*#%@";
    CUdeviceptr out;
    CUfunction mandelbrot;
    unsigned width = WIDTH, height = HEIGHT, limit = LIMIT;
    double start = milliseconds();
    MUST(cuModuleGetFunction(&mandelbrot, module, "mandelbrot"));
    MUST(cuMemAlloc(&out, sizeof counts));
    void *arguments[] = {&out, &width, &height, &limit};
    MUST(cuLaunchKernel(mandelbrot, (WIDTH * HEIGHT + 127) / 128, 1, 1, 128, 1, 1, 0, NULL, arguments, NULL));
    MUST(cuMemcpyDtoH(counts, out, sizeof counts));
    double took = milliseconds() - start;
    MUST(cuMemFree(out));
    for (unsigned y = 0; y < HEIGHT; y++) {
        for (unsigned x = 0; x < WIDTH; x++) {
            unsigned at = y * WIDTH + x;
            if (counts[at] != iterations(at)) {
                fprintf(stderr, "point %u took %u steps, not %u\n", at, counts[at], iterations(at));
                exit(1);
            }
            putchar(counts[at] == LIMIT ? '@' : shades[counts[at] % 9]);
        }
        putchar('\n');
    }
    printf("painted %d points in %.1f ms, every point as the CPU has it\n", WIDTH * HEIGHT, took);
}

static void pause_ms(long milliseconds)
{
    struct timespec time = {0, milliseconds * 1000000};
    nanosleep(&time, NULL);
}

/* Paints row by row. The points and the sum stay on the GPU until the end. */
static void paint_slowly(CUmodule module)
{
    enum { ROW_MS = 60 };
    static const char shades[] = " .:-=+*#%@";
    CUdeviceptr points, sum;
    CUfunction mandelbrot, gather;
    unsigned width = WIDTH, height = HEIGHT, limit = LIMIT, on_gpu = 0, on_cpu = 0;
    MUST(cuModuleGetFunction(&mandelbrot, module, "mandelbrot"));
    MUST(cuModuleGetFunction(&gather, module, "gather"));
    MUST(cuMemAlloc(&points, WIDTH * HEIGHT * sizeof(unsigned)));
    MUST(cuMemAlloc(&sum, sizeof on_gpu));
    MUST(cuMemcpyHtoD(sum, &on_gpu, sizeof on_gpu));
    void *arguments[] = {&points, &width, &height, &limit};
    MUST(cuLaunchKernel(mandelbrot, (WIDTH * HEIGHT + 127) / 128, 1, 1, 128, 1, 1, 0, NULL, arguments, NULL));
    for (unsigned y = 0; y < HEIGHT; y++) {
        unsigned first = y * WIDTH, row[WIDTH];
        void *of_row[] = {&points, &sum, &first, &width};
        MUST(cuLaunchKernel(gather, 1, 1, 1, 128, 1, 1, 0, NULL, of_row, NULL));
        MUST(cuMemcpyDtoH(row, points + first * sizeof *row, sizeof row));
        for (unsigned x = 0; x < WIDTH; x++) {
            if (row[x] != iterations(first + x)) {
                fprintf(stderr, "point %u took %u steps, not %u\n", first + x, row[x], iterations(first + x));
                exit(1);
            }
            on_cpu += row[x];
            putchar(row[x] == LIMIT ? '@' : shades[row[x] % 9]);
        }
        putchar('\n');
        fflush(stdout);
        pause_ms(ROW_MS);
    }
    MUST(cuMemcpyDtoH(&on_gpu, sum, sizeof on_gpu));
    if (on_gpu != on_cpu) {
        fprintf(stderr, "the GPU's sum is %u, not %u\n", on_gpu, on_cpu);
        exit(1);
    }
    printf("the sum that the GPU kept over all rows is %u, as the CPU has it\n", on_gpu);
    MUST(cuMemFree(points));
    MUST(cuMemFree(sum));
}

int main(int argc, char **argv)
{
    int count;
    CUdevice device;
    CUcontext context;
    CUmodule module;
    char name[128];
    size_t bytes;
    load_driver();
    double start = milliseconds();
    MUST(cuInit(0));
    MUST(cuDeviceGetCount(&count));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDeviceGetName(name, sizeof name, device));
    MUST(cuDeviceTotalMem(&bytes, device));
    printf("cuInit took %.1f ms and found %d GPU%s: %s with %.1f GiB\n", milliseconds() - start, count,
           count == 1 ? "" : "s", name, bytes / 1073741824.0);
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, ptx));
    if (argc > 1 && strcmp(argv[1], "slowly") == 0) {
        paint_slowly(module);
    } else {
        add_vectors(module);
        paint(module);
    }
    MUST(cuCtxSynchronize());
    MUST(cuModuleUnload(module));
    MUST(cuDevicePrimaryCtxRelease(device));
    return 0;
}
