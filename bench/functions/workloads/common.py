"""What the six handlers share: the device, weights by a fixed seed, and the times that an answer carries."""

import os
import pathlib
import time

STARTED = float(os.environ.get("BENCH_STARTED", "0")) or time.time()

import torch  # noqa: E402

IMPORTED = time.time()
SEED = 20260716


def device():
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def finish(where):
    if where.type == "cuda":
        torch.cuda.synchronize()


def weights_file(name, is_tiny):
    """Where the weights of a workload are kept."""
    folder = pathlib.Path(os.environ.get("BENCH_WEIGHTS", "/tmp/dxpu-functions-weights"))
    return folder / f"{name}{'-tiny' if is_tiny else ''}.pt"


def build(make, name, is_tiny):
    """A model with random weights of a fixed seed. They are written once and read by each process, as those of a function are."""
    file = weights_file(name, is_tiny)
    if file.exists():
        with torch.device("meta"):
            model = make(is_tiny)
        state = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
        model.load_state_dict(state, assign=True)
    else:
        torch.manual_seed(SEED)
        model = make(is_tiny)
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(f".{os.getpid()}")
        torch.save(model.state_dict(), draft)
        draft.rename(file)
    return model.eval()


class Workload:
    """A model that is loaded at the first invocation of an instance, and what is done with it."""

    def __init__(self, name, make, run):
        self.name, self.make, self.run = name, make, run
        self.model, self.load_s, self.count = None, 0.0, 0

    def __call__(self, event, _context=None):
        entered = time.time()
        is_tiny = bool(event.get("tiny"))
        where = device()
        if self.model is None and self.make is not None:
            self.model = build(self.make, self.name, is_tiny).to(where)
            finish(where)
            self.load_s = time.time() - entered
        began = time.time()
        with torch.inference_mode():
            result = self.run(self.model, where, is_tiny)
        finish(where)
        ended = time.time()
        self.count += 1
        return {
            "workload": self.name,
            "device": where.type,
            "result": result,
            "started": STARTED,
            "imported": IMPORTED,
            "entered": entered,
            "ended": ended,
            "load_s": self.load_s,
            "compute_s": ended - began,
            "served_by_this_instance": self.count,
        }


def random_batches(where, count, shape):
    """The same batches in every process."""
    source = torch.Generator().manual_seed(SEED + 1)
    for _ in range(count):
        yield torch.randn(shape, generator=source).to(where)


def checksum(tensor):
    """A number that two sides must agree on but for rounding."""
    return round(float(tensor.double().abs().mean()), 4)
