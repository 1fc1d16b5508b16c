"""A detector of the SSD kind: many layers, many short kernels, and a loss that looks at its own results."""

import torch

from . import models
from .workload import Prepared


def ssd_training(where):
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    models.seed()
    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=91)
    model.to(where.device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0005, momentum=0.9)
    batch = where.pick(8, 2)
    generator = torch.Generator().manual_seed(models.SEED)
    images = [torch.rand(3, 320, 320, generator=generator).to(where.device) for _ in range(batch)]
    targets = []
    for index in range(batch):
        corners = torch.rand(4, 2, generator=generator) * 200
        boxes = torch.cat([corners, corners + 40 + 60 * torch.rand(4, 2, generator=generator)], dim=1)
        labels = (torch.arange(4) * 7 + index) % 90 + 1
        targets.append({"boxes": boxes.to(where.device), "labels": labels.to(where.device)})
    last = []

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = sum(model(images, targets).values())
        loss.backward()
        optimizer.step()
        last[:] = [loss.detach()]

    return Prepared(step, lambda: [last[0].item()])
