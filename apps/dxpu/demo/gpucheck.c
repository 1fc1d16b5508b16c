/* Looks whether a GPU works, and makes its memory forget. An ordinary CUDA driver program: it loads libcuda.so.1.
 *
 *   gpucheck scrub [MEBIBYTES]   overwrites all memory that can be had, but leaves so much, and reads it again
 *   gpucheck verify MEBIBYTES    takes so much memory and looks whether anything is in it
 *   gpucheck look MOST LEFT      the same piece by piece, with at most so many mebibytes, and leaves so many free
 *   gpucheck burn-in MEBIBYTES   patterns in at most so much memory, written and checked by kernels, twice
 *
 * Ends with 0 when all is well; says on its last line what was done, or what is wrong. */

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef int CUdevice;
typedef void *CUcontext;
typedef void *CUmodule;
typedef void *CUfunction;
typedef void *CUstream;
typedef unsigned long long CUdeviceptr;

#define FUNCTIONS(X)                                                                                                   \
    X(cuInit, cuInit, (unsigned))                                                                                      \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                     \
    X(cuCtxSetCurrent, cuCtxSetCurrent, (CUcontext))                                                                   \
    X(cuCtxSynchronize, cuCtxSynchronize, (void))                                                                      \
    X(cuMemGetInfo, cuMemGetInfo_v2, (size_t *, size_t *))                                                             \
    X(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                              \
    X(cuMemsetD32, cuMemsetD32_v2, (CUdeviceptr, unsigned, size_t))                                                    \
    X(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t))                                                    \
    X(cuModuleLoadData, cuModuleLoadData, (CUmodule *, const void *))                                                  \
    X(cuModuleGetFunction, cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                                \
    X(cuLaunchKernel, cuLaunchKernel,                                                                                  \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))  \
    X(cuGetErrorString, cuGetErrorString, (CUresult, const char **))

#define DECLARE(name, symbol, arguments) static CUresult(*p_##name) arguments;
FUNCTIONS(DECLARE)

static void fail(const char *what, CUresult code)
{
    const char *text = "unknown error";
    if (p_cuGetErrorString)
        p_cuGetErrorString(code, &text);
    printf("%s: %s (%d)\n", what, text, code);
    exit(1);
}

#define MUST(call)                 \
    do {                           \
        CUresult code_ = p_##call; \
        if (code_)                 \
            fail(#call, code_);    \
    } while (0)

static void load_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        printf("%s\n", dlerror());
        exit(1);
    }
#define FIND(name, symbol, arguments)                              \
    if (!(*(void **)&p_##name = dlsym(library, #symbol))) {        \
        printf("libcuda.so.1 has no %s\n", #symbol);               \
        exit(1);                                                   \
    }
    FUNCTIONS(FIND)
}

/* Word i of a pattern: i * 2654435761 + seed, its halves mixed. `fill` writes it, `check` counts the words that differ,
 * `used` counts the words that are not zero. One thread for each word, the first word at `first`. */
static const char KERNELS[] =
    ".version 7.0\n.target sm_50\n.address_size 64\n"
#define HEAD(name)                                                                            \
    ".visible .entry " name "(.param .u64 words, .param .u64 count, .param .u32 seed, .param .u64 wrong)\n{\n" \
    ".reg .pred %p;\n.reg .b32 %r<8>;\n.reg .b64 %rd<8>;\n"                                   \
    "mov.u32 %r0, %ctaid.x;\nmov.u32 %r1, %ntid.x;\nmov.u32 %r2, %tid.x;\n"                   \
    "mad.lo.u32 %r0, %r0, %r1, %r2;\ncvt.u64.u32 %rd0, %r0;\nld.param.u64 %rd1, [count];\n"   \
    "setp.ge.u64 %p, %rd0, %rd1;\n@%p bra DONE;\n"                                            \
    "ld.param.u64 %rd2, [words];\ncvta.to.global.u64 %rd2, %rd2;\n"                           \
    "shl.b64 %rd3, %rd0, 2;\nadd.u64 %rd2, %rd2, %rd3;\n"                                     \
    "ld.param.u32 %r3, [seed];\nmul.lo.u32 %r4, %r0, 2654435761;\nadd.u32 %r4, %r4, %r3;\n"   \
    "shr.u32 %r5, %r4, 16;\nxor.b32 %r4, %r4, %r5;\n"
#define COUNT                                                                                 \
    "@%p bra DONE;\nld.param.u64 %rd4, [wrong];\ncvta.to.global.u64 %rd4, %rd4;\n"            \
    "atom.global.add.u32 %r7, [%rd4], 1;\n"
#define TAIL "DONE:\nret;\n}\n"
    HEAD("fill") "st.global.u32 [%rd2], %r4;\n" TAIL
    HEAD("check") "ld.global.u32 %r6, [%rd2];\nsetp.eq.u32 %p, %r6, %r4;\n" COUNT TAIL
    HEAD("used") "ld.global.u32 %r6, [%rd2];\nsetp.eq.u32 %p, %r6, 0;\n" COUNT TAIL;

enum { THREADS = 256, PIECES_MAX = 4096 };

static CUfunction fill_fn, check_fn, used_fn;
static CUdeviceptr wrong_at;

/* Runs a kernel over a piece of memory. */
static void run(CUfunction function, CUdeviceptr words, size_t bytes, unsigned seed)
{
    /* A launch covers what an unsigned word number can name. */
    const uint64_t at_once = (uint64_t)1 << 30;
    for (uint64_t first = 0; first < bytes / 4; first += at_once) {
        uint64_t count = bytes / 4 - first < at_once ? bytes / 4 - first : at_once;
        CUdeviceptr from = words + first * 4;
        void *arguments[] = {&from, &count, &seed, &wrong_at};
        unsigned blocks = (unsigned)((count + THREADS - 1) / THREADS);
        MUST(cuLaunchKernel(function, blocks, 1, 1, THREADS, 1, 1, 0, NULL, arguments, NULL));
    }
}

static unsigned wrong_words(void)
{
    unsigned wrong;
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoH(&wrong, wrong_at, sizeof wrong));
    return wrong;
}

static struct {
    CUdeviceptr at;
    size_t bytes;
} pieces[PIECES_MAX];
static int piece_count;

/* Takes memory, at most `bytes` of it, in pieces as large as can be had. */
static size_t take(size_t bytes)
{
    size_t taken = 0, piece = bytes & ~(size_t)0x1fffff;
    while (piece >= 2 << 20 && taken + (2 << 20) <= bytes && piece_count < PIECES_MAX) {
        if (piece > bytes - taken)
            piece = (bytes - taken) & ~(size_t)0x1fffff;
        CUdeviceptr at;
        if (p_cuMemAlloc(&at, piece)) {
            piece = piece / 2 & ~(size_t)0x1fffff;
            continue;
        }
        pieces[piece_count].at = at;
        pieces[piece_count++].bytes = piece;
        taken += piece;
    }
    return taken;
}

static int scrub(size_t free_bytes, size_t total_bytes)
{
    size_t taken = take(free_bytes);
    for (int n = 0; n < piece_count; n++)
        MUST(cuMemsetD32(pieces[n].at, 0, pieces[n].bytes / 4));
    for (int n = 0; n < piece_count; n++)
        run(used_fn, pieces[n].at, pieces[n].bytes, 0);
    unsigned used = wrong_words();
    if (used) {
        printf("%u words of memory are not zero after they were set to zero\n", used);
        return 1;
    }
    printf("%zu MiB of %zu MiB are zero\n", taken >> 20, total_bytes >> 20);
    return 0;
}

/* What the driver hands out must be empty, because another lease uses the GPU meanwhile and nothing of theirs may be
 * overwritten. What is found is overwritten and told. */
static int verify(size_t bytes)
{
    size_t taken = take(bytes);
    for (int n = 0; n < piece_count; n++)
        run(used_fn, pieces[n].at, pieces[n].bytes, 0);
    unsigned used = wrong_words();
    for (int n = 0; n < piece_count; n++)
        MUST(cuMemsetD32(pieces[n].at, 0, pieces[n].bytes / 4));
    MUST(cuCtxSynchronize());
    if (used) {
        printf("the driver handed out memory with %u words in it that are not zero\n", used);
        return 1;
    }
    printf("%zu MiB are handed out empty\n", taken >> 20);
    return 0;
}

/* The same beside a program that may want the memory, and has this process killed then: each piece is looked at before the
 * next one is taken, and what has been seen so far is told. Pieces are kept, so that the next one is other memory. */
static int look(size_t most, size_t left)
{
    const size_t piece = (size_t)256 << 20;
    size_t taken = 0, free_bytes, total_bytes;
    printf("no memory was free to look at\n");
    while (taken + piece <= most) {
        CUdeviceptr at;
        MUST(cuMemGetInfo(&free_bytes, &total_bytes));
        if (free_bytes < left + piece || p_cuMemAlloc(&at, piece))
            break;
        run(used_fn, at, piece, 0);
        unsigned used = wrong_words();
        MUST(cuMemsetD32(at, 0, piece / 4));
        if (used) {
            printf("the driver handed out memory with %u words in it that are not zero\n", used);
            return 1;
        }
        taken += piece;
        printf("%zu MiB are handed out empty\n", taken >> 20);
    }
    return 0;
}

static int burn_in(size_t bytes)
{
    size_t taken = take(bytes);
    if (!taken) {
        printf("no memory can be allocated\n");
        return 1;
    }
    const unsigned seeds[] = {0x5eed0001u, 0xa11ce5u};
    for (unsigned s = 0; s < 2; s++) {
        for (int n = 0; n < piece_count; n++)
            run(fill_fn, pieces[n].at, pieces[n].bytes, seeds[s] + n);
        for (int n = 0; n < piece_count; n++)
            run(check_fn, pieces[n].at, pieces[n].bytes, seeds[s] + n);
        unsigned wrong = wrong_words();
        if (wrong) {
            printf("%u words of memory do not hold what was written to them\n", wrong);
            return 1;
        }
    }
    /* The judge is judged: a wrong expectation must be noticed, and the host must read what the kernels wrote. */
    run(check_fn, pieces[0].at, THREADS * 4, seeds[1] + 1);
    if (wrong_words() != THREADS) {
        printf("kernels do not notice wrong words\n");
        return 1;
    }
    uint32_t words[THREADS];
    MUST(cuMemcpyDtoH(words, pieces[0].at, sizeof words));
    for (uint32_t i = 0; i < THREADS; i++) {
        uint32_t expected = i * 2654435761u + seeds[1];
        if (words[i] != (expected ^ expected >> 16)) {
            printf("word %u is %08x on the host and not what a kernel wrote\n", i, words[i]);
            return 1;
        }
    }
    printf("patterns held in %zu MiB\n", taken >> 20);
    return 0;
}

int main(int count, char **arguments)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    int is_scrub = (count == 2 || count == 3) && !strcmp(arguments[1], "scrub");
    int is_verify = count == 3 && !strcmp(arguments[1], "verify");
    int is_look = count == 4 && !strcmp(arguments[1], "look");
    int is_burn_in = count == 3 && !strcmp(arguments[1], "burn-in");
    if (!is_scrub && !is_verify && !is_look && !is_burn_in) {
        printf("usage: gpucheck scrub [MEBIBYTES] | verify MEBIBYTES | look MOST LEFT | burn-in MEBIBYTES\n");
        return 2;
    }
    CUcontext context;
    CUmodule module;
    size_t free_bytes, total_bytes;
    load_driver();
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, KERNELS));
    MUST(cuModuleGetFunction(&fill_fn, module, "fill"));
    MUST(cuModuleGetFunction(&check_fn, module, "check"));
    MUST(cuModuleGetFunction(&used_fn, module, "used"));
    MUST(cuMemAlloc(&wrong_at, 4));
    MUST(cuMemsetD32(wrong_at, 0, 1));
    MUST(cuMemGetInfo(&free_bytes, &total_bytes));
    size_t most = count >= 3 ? (size_t)strtoull(arguments[2], NULL, 10) << 20 : 0;
    if (is_scrub)
        return scrub(free_bytes > most ? free_bytes - most : 0, total_bytes);
    if (is_verify)
        return verify(most < free_bytes ? most : free_bytes);
    if (is_look)
        return look(most, (size_t)strtoull(arguments[3], NULL, 10) << 20);
    return burn_in(most < free_bytes / 10 * 9 ? most : free_bytes / 10 * 9);
}
