"""Memory that streams allocate and free: given out in the client, used again while kernels still run, and never by two."""
import json
import subprocess

import kit

# Of the calling thread, for one block freed and another allocated: measured 2,070; a block that took a message would take far more.
ALLOCATION_INSTRUCTIONS_MAX = 2500

PROMISES = (
    "a_stream_has_its_memory_back_at_once",
    "another_stream_does_not",
    "memory_follows_events",
    "memory_goes_from_stream_to_stream",
    "streams_that_end_leave_their_memory",
    "blocks_lie_across_pieces",
    "a_pool_ends_with_its_last_block",
    "a_reset_ends_all_blocks",
    "threads_trade_blocks",
)


def tell(record):
    with kit.Worker("--memory", "2GiB") as worker:
        for promise in PROMISES:
            for scheme in ("unix", "shm"):
                record.part(f"{promise} over {scheme}", keeps, worker, promise, scheme)
    with kit.Worker("--memory", "500MiB") as worker:
        record.part("a_full_device_takes_from_pools", keeps, worker, "a_full_device_takes_from_pools", "unix")


    record.part("what a block costs", costs)


def costs():
    """Instructions, not time: the same on every machine. -1 where one process may not count another's."""
    command = [kit.dxpu, "bench", "api", "--json", "--rounds", "20", "--megabytes", "1", "--repeat", "1"]
    done = subprocess.run(command, env=kit.clean_environment(), capture_output=True, text=True, timeout=300)
    kit.hold(done.returncode == 0, done.stderr)
    found = json.loads(done.stdout)["allocation_instructions"]
    kit.hold(found <= ALLOCATION_INSTRUCTIONS_MAX, "a block takes", found, "instructions, at most", ALLOCATION_INSTRUCTIONS_MAX)
    return f"{found:.0f} instructions"


def keeps(worker, promise, scheme):
    worker.must(kit.program("pools"), promise, scheme=scheme)
