"""Many programs with many threads at once: all results right, nothing left behind."""

import kit

CLIENTS = 32
THREADS = 8
ROUNDS = 6


def tell(record):
    with kit.Worker("--memory", "8GiB") as worker:
        record.part(f"{CLIENTS} programs of {THREADS} threads", crowd, worker)


def crowd(worker):
    with worker.left_as_found():
        def client(number):
            scheme = kit.SCHEMES[number % len(kit.SCHEMES)]
            return worker.run(kit.program("load"), THREADS, ROUNDS, scheme=scheme, seconds=240)

        ends = kit.each(CLIENTS, client, at_once=CLIENTS)
    wrong = [(end.returncode, end.stderr) for end in ends if end.returncode or not end.stdout.endswith("all right\n")]
    kit.hold(not wrong, len(wrong), "of", CLIENTS, "failed; the first:", wrong[:1])
    return f"slowest {max(end.seconds for end in ends):.1f} s"
