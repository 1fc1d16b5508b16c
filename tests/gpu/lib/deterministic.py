"""Makes a program give the same bits every time it runs on the same GPU."""

import os

# Read by cuBLAS when it starts.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402
from say import note  # noqa: E402


def run(body):
    """Runs `body` with deterministic algorithms only; where PyTorch has none for an operation, with a note of that."""
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True)
    try:
        return body()
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        note("not-deterministic", error)
        torch.use_deterministic_algorithms(True, warn_only=True)
        return body()


def train(model, inputs, loss_of, optimizer, steps=5):
    """Losses of so many steps, then all parameters and buffers."""
    losses = []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, *inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, [*model.parameters(), *model.buffers()]
