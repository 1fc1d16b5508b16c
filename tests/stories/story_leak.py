"""Two hundred programs one after the other: afterwards the worker is as it was, and ends well."""
import kit

CLIENTS = 200
AT_ONCE = 2
# The allocator and the log keep a little; a leak of one buffer or thread for each client is far more than this.
RESIDENT_GROWTH_BYTES = 4 << 20


def tell(record):
    with kit.Worker() as worker:
        record.part(f"{CLIENTS} programs in a row", row, worker)
        record.part("SIGTERM while programs work", good_end, worker)


def row(worker):
    def client(number):
        worker.must(kit.program("load"), 1, 2, scheme=kit.SCHEMES[number % len(kit.SCHEMES)])

    # Whatever is made once is made now.
    kit.each(8, client, AT_ONCE)
    with worker.left_as_found():
        before = worker.resident_bytes()
        kit.each(CLIENTS, client, AT_ONCE)
    growth = worker.resident_bytes() - before
    kit.hold(growth < RESIDENT_GROWTH_BYTES, "the listening process grew by", growth, "bytes")
    return f"the listening process grew by {growth >> 10} KiB"


def good_end(worker):
    clients = [worker.start(kit.program("load"), 1, 0, scheme=scheme) for scheme in kit.SCHEMES]
    try:
        for client in clients:
            client.wait_for("working")
        worker.stop()
        for client in clients:
            client.ends(7, 5)
    finally:
        for client in clients:
            client.__exit__()
