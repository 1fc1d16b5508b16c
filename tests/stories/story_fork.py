"""Programs that fork: the child has no device, the parent keeps its own, and neither harms the other."""
import os
import re
import signal

import kit

FORKS = ("child_uses_cuda", "child_does_not", "fork_under_load", "grandchild_keeps_its_files", "fork_before_init")


def tell(record):
    with kit.Worker() as worker:
        for what in FORKS:
            for scheme in ("unix", "tls", "shm"):
                record.part(f"{what} over {scheme}", forks, worker, what, scheme)
        for scheme in kit.SCHEMES:
            record.part(f"the parent dies, the child lives on, over {scheme}", child_outlives, worker, scheme)


def forks(worker, what, scheme):
    with worker.left_as_found():
        worker.must(kit.program("forks"), what, scheme=scheme)


def child_outlives(worker, scheme):
    with worker.left_as_found(), worker.start(kit.program("forks"), "child_outlives", scheme=scheme) as parent:
        parent.wait_for("child ")
        child = int(re.search(r"child (\d+)", parent.said())[1])
        session = worker.session_of(parent.pid)
        try:
            parent.process.kill()
            kit.until("the worker notices the parent's death", lambda: not kit.alive(session), 3)
            kit.hold(kit.alive(child), "the child died with its parent")
        finally:
            os.kill(child, signal.SIGKILL)
