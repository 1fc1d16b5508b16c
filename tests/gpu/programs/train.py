"""Trains a small network for ever, one line a step: `step N seconds-since-the-epoch loss`. An error is told with its time.

Deterministic: step N has the same loss in every run, whatever happens to others.
"""

import sys
import time

import deterministic  # noqa: F401  (sets what cuBLAS reads when it starts)
import torch
from say import note, same
from workloads import models

torch.use_deterministic_algorithms(True)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 40
kind = sys.argv[2] if len(sys.argv) > 2 else "mlp"
torch.backends.cudnn.benchmark = False


def network():
    """A network, and a function that computes its loss."""
    fixed = torch.Generator().manual_seed(1)
    if kind == "resnet":
        model, shape = models.resnet()
        x, target = torch.randn(16, *shape, generator=fixed).cuda(), torch.arange(16, device="cuda") % 10
        return model, lambda: torch.nn.functional.cross_entropy(model(x), target)
    if kind == "bert":
        model, vocabulary = models.bert_classifier()
        x, labels = torch.randint(1, vocabulary, (8, 128), generator=fixed).cuda(), torch.arange(8, device="cuda") % 2
        return model, lambda: model(x, labels=labels).loss
    model, width = models.mlp()
    x = torch.randn(32, width, generator=fixed).cuda()
    return model, lambda: (model(x) - x).square().mean()


model, loss_of = network()
model.cuda().train()
torch.manual_seed(2)
x = torch.zeros(8, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
try:
    for n in range(steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        value = loss.item()
        print(f"step {n} {time.time():.6f} {value.hex()}", flush=True)
except RuntimeError as error:
    told = time.time()
    same("error", str(error).splitlines()[0])
    note("type", type(error).__name__)
    print(f"error-at {told:.6f}", flush=True)
    # Every later call must fail at once, and none may hang.
    began = time.monotonic()
    for body in (lambda: x + 1, torch.cuda.synchronize, lambda: x.cpu(), lambda: torch.zeros(1, device="cuda")):
        try:
            body()
            same("later-call", "no error")
        except RuntimeError:
            same("later-call", "error")
    note("later-calls-seconds", time.monotonic() - began)
    print("ended-well", flush=True)
