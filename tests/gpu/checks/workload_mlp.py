"""A small network trained for 200 steps, each step's loss read back: losses and parameters, to the bit."""

import deterministic
import torch
from device import DEVICE
from say import attempts, bits, same
from workloads import models


def training():
    model, width = models.mlp()
    model.to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(32, width, generator=torch.Generator().manual_seed(1)).to(DEVICE)

    def body():
        losses = []
        for _ in range(200):
            optimizer.zero_grad()
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    losses = deterministic.run(body)
    same("losses", [loss.hex() for loss in losses])
    bits("state", *model.parameters())


attempts(training)
