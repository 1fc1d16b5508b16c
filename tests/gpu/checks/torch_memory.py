"""Memory: PyTorch's own statistics, free memory of the device, running out of it and going on."""

import torch
from say import attempts, note, same

GIB = 1 << 30


def statistics():
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    x = torch.ones(10 << 20, device="cuda")
    same("allocated", torch.cuda.memory_allocated())
    same("reserved", torch.cuda.memory_reserved())
    del x
    same("after", torch.cuda.memory_allocated())
    same("peak", torch.cuda.max_memory_allocated())
    stats = torch.cuda.memory_stats()
    for key in ("allocation.all.allocated", "segment.all.current", "num_ooms", "num_alloc_retries"):
        same(key, stats[key])
    same("summary", "PyTorch CUDA memory summary" in torch.cuda.memory_summary())
    same("snapshot", len(torch.cuda.memory_snapshot()) > 0)


def free_memory_follows():
    torch.cuda.empty_cache()
    before, total = torch.cuda.mem_get_info()
    x = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    held, _ = torch.cuda.mem_get_info()
    del x
    torch.cuda.empty_cache()
    after, _ = torch.cuda.mem_get_info()
    note("before-held-after-total", (before, held, after, total))
    # Others may use the same GPU at the same time: much less than what was allocated here.
    return abs((before - held) - 2 * GIB) < GIB and abs(after - before) < GIB


def running_out():
    before = torch.cuda.memory_stats()["num_ooms"]
    try:
        torch.empty(4000 * GIB, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        same("kind", type(error).__name__)
        same("text", str(error).split(".")[0])
        same("counted", torch.cuda.memory_stats()["num_ooms"] - before)
        return (torch.arange(10, device="cuda") * 2).sum()
    return "no error"


def running_out_bit_by_bit():
    """Fill what is there, meet the end, give it back, go on."""
    held, was_out = [], False
    while len(held) < 400:
        try:
            held.append(torch.empty(GIB, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            was_out = True
            break
    note("gibibytes-held", len(held))
    # The last one is usable to its last byte.
    held[-1].fill_(7)
    same("last-byte", held[-1][-1].item())
    same("was-out", was_out)
    held.clear()
    torch.cuda.empty_cache()
    return torch.ones(GIB // 4, device="cuda").sum()


def a_memory_fraction_is_a_limit():
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(4 * GIB / total)
    try:
        torch.empty(6 * GIB, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        return "refused"
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return "granted"


def pinned_memory():
    x = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)
    same("is-pinned", (x.is_pinned(), torch.empty(3).is_pinned(), x[5:].is_pinned()))
    x.random_(generator=torch.Generator().manual_seed(1))
    there = x.cuda(non_blocking=True)
    back = torch.empty_like(x, pin_memory=True)
    back.copy_(there, non_blocking=True)
    torch.cuda.synchronize()
    same("round-trip", torch.equal(x, back))
    return there


def memory_of_a_pool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(1 << 20, device="cuda")
    return x.sum()


def the_asynchronous_allocator_of_cuda():
    """cudaMallocAsync through the runtime, as `backend:cudaMallocAsync` would use it."""
    import ctypes

    torch.ones(1, device="cuda")
    runtime = ctypes.CDLL("libcudart.so.13")
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    found = []
    for size in (1, 1 << 20, 1 << 30):
        pointer = ctypes.c_void_p()
        found.append(runtime.cudaMallocAsync(ctypes.byref(pointer), ctypes.c_size_t(size), stream))
        found.append(runtime.cudaMemsetAsync(pointer, 1, ctypes.c_size_t(size), stream))
        found.append(runtime.cudaFreeAsync(pointer, stream))
    torch.cuda.synchronize()
    return found


attempts(
    statistics,
    free_memory_follows,
    running_out,
    running_out_bit_by_bit,
    a_memory_fraction_is_a_limit,
    pinned_memory,
    memory_of_a_pool,
    the_asynchronous_allocator_of_cuda,
)
