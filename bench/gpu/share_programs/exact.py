"""Results to the bit: algorithms that repeat them, digests, and a comparison that runs on the device after every request."""

import contextlib
import hashlib
import os

import torch

# SHARE_DEVICE=cpu tries the networks without a GPU; those that are CUDA graphs cannot be tried so.
DEVICE = os.environ.get("SHARE_DEVICE", "cuda")
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


@contextlib.contextmanager
def exact_algorithms():
    """PyTorch uses algorithms that give the same bits each time, where it has them."""
    before = torch.backends.cudnn.deterministic
    # Some operations have no such algorithm and warn. The benchmark compares two runs alone first, so that this would show.
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Otherwise each new tensor is filled, which is work that no program has.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = before


def bits(tensor):
    """The same memory as integers: two results that are not numbers are equal if their bits are."""
    return tensor.detach().contiguous().view(INTEGERS[tensor.element_size()])


def digest(tensors):
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(bits(tensor).cpu().numpy().tobytes())
    return found.hexdigest()


class Comparison:
    """Counts results that differ from the first one. `note` is three small kernels, which may be part of a CUDA graph. Results that
    are not finite are never right: a mistake could not change them."""

    def __init__(self, like):
        self.right = torch.zeros_like(bits(like))
        self.wrong = torch.zeros((), dtype=torch.int64, device=like.device)
        self.is_finite = False

    def note(self, result):
        self.wrong.add_(bits(result).ne(self.right).any())

    def learn(self, result):
        """What is right from now on."""
        wait()
        self.is_finite = bool(torch.isfinite(result).all())
        self.right.copy_(bits(result))
        self.wrong.zero_()
        wait()

    def check(self):
        wrong = int(self.wrong.item())
        self.wrong.zero_()
        return wrong == 0 and self.is_finite
