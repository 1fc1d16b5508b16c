"""ResNet-50, five training steps: losses, parameters and statistics, to the bit."""

import deterministic
import torch
from device import DEVICE
from say import attempts, bits
from workloads import models


def training():
    model, shape = models.resnet(is_tiny=DEVICE == "cpu")
    model.to(DEVICE).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(16, *shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    target = torch.arange(16, device=DEVICE) % 10

    def body():
        return deterministic.train(model, (x, target), lambda m, x, y: torch.nn.functional.cross_entropy(m(x), y), optimizer)

    losses, state = deterministic.run(body)
    bits("losses", *losses)
    bits("state", *state)


def inference():
    model, shape = models.resnet(is_tiny=DEVICE == "cpu")
    model.to(DEVICE).eval()
    x = torch.randn(8, *shape, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    with torch.no_grad():
        return [model(x), model.half()(x.half())]


attempts(training, inference)
