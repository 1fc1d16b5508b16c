"""The device that a check computes on: the GPU; CHECK_DEVICE=cpu shows that the check itself is right where there is none."""

import os

DEVICE = os.environ.get("CHECK_DEVICE", "cuda")


def synchronize():
    if DEVICE == "cuda":
        import torch

        torch.cuda.synchronize()
