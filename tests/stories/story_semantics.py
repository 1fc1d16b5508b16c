"""What CUDA promises about order, time and errors, and a remote driver could easily break."""
import kit

PROMISES = (
    "pinned_copy_lands_later",
    "pinned_memory_is_read_late",
    "host_functions_keep_order",
    "threads_keep_order",
    "waiting_blocks_nobody",
    "per_thread_default_streams",
    "legacy_stream_order",
    "synchronous_copies_are_there",
    "small_results_come_first",
    "kernels_reach_pinned_memory",
    "running_kernels_see_pinned_memory",
    "a_memset_of_pinned_memory_is_done",
    "pinned_memory_is_there_in_time",
    "pinned_memory_has_a_device_name",
    "capture_beside_work",
    "copies_behind_a_graph",
)


def tell(record):
    with kit.Worker() as worker:
        record.part("deferred_error, and a neighbour that does not notice", deferred_error, worker)
        record.part("kernel_prints_in_time", kernel_prints, worker)
        for promise in PROMISES:
            for scheme in ("unix", "shm"):
                record.part(f"{promise} over {scheme}", keeps, worker, promise, scheme)


def keeps(worker, promise, scheme):
    worker.must(kit.program("semantics"), promise, scheme=scheme)


def deferred_error(worker):
    with worker.start(kit.program("load"), 2, 40) as neighbour:
        neighbour.wait_for("working")
        for _ in range(3):
            keeps(worker, "deferred_error", "unix")
        neighbour.ends(0)
    # The fault was one program's: the next one finds the device whole.
    worker.must(kit.program("load"), 1, 3)


def kernel_prints(worker):
    for scheme in kit.SCHEMES:
        text = worker.must(kit.program("semantics"), "kernel_prints_in_time", scheme=scheme)
        kit.hold(text == "before\nthe kernel says 42\nafter\n", "the output over", scheme, "is", repr(text))
