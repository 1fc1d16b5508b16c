"""Detectors of the SSD kind: many layers, many short kernels."""

import torch

from . import models
from .workload import Prepared

CLASSES = 91
IMAGE = 320
# Of a hundred anchors, so many match an object; for each of these, three others count as background.
MATCHED_PERCENT = 2
NEGATIVES = 3


def ssdlite(where):
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    models.seed()
    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=CLASSES)
    return model.to(where.device).train()


def ssd_training(where):
    """As torchvision trains it: a loss that matches boxes image by image, in Python, and looks at its own results."""
    model = ssdlite(where)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0005, momentum=0.9)
    batch = where.pick(8, 2)
    generator = torch.Generator().manual_seed(models.SEED)
    images = [torch.rand(3, IMAGE, IMAGE, generator=generator).to(where.device) for _ in range(batch)]
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


def multibox_loss(boxes, scores, wanted_boxes, wanted_classes):
    """The loss of SSD: boxes where an object is, classes there and at the hardest of the other anchors."""
    is_object = wanted_classes > 0
    box_loss = torch.nn.functional.smooth_l1_loss(boxes, wanted_boxes, reduction="none").sum(dim=2)
    class_loss = torch.nn.functional.cross_entropy(scores.transpose(1, 2), wanted_classes, reduction="none")
    background = class_loss.detach().masked_fill(is_object, 0.0)
    rank = background.argsort(dim=1, descending=True).argsort(dim=1)
    count = is_object.sum(dim=1, keepdim=True)
    counts = is_object | (rank < NEGATIVES * count)
    return ((box_loss * is_object).sum() + (class_loss * counts).sum()) / count.sum()


def ssd_matched_training(where):
    """The same network with boxes matched to anchors beforehand, as training at scale does in its data loader: nothing of the step
    waits for the GPU, so that it is the GPU, with its short kernels, that sets the pace."""
    model = ssdlite(where)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0005, momentum=0.9)
    batch = where.pick(128, 2)
    generator = torch.Generator().manual_seed(models.SEED)
    images = torch.rand(batch, 3, IMAGE, IMAGE, generator=generator).to(where.device)
    with torch.no_grad():
        anchors = model.head(list(model.backbone(images[:2]).values()))["bbox_regression"].shape[1]
    wanted_boxes = torch.randn(batch, anchors, 4, generator=generator).to(where.device)
    is_matched = torch.randint(100, (batch, anchors), generator=generator) < MATCHED_PERCENT
    wanted_classes = (torch.randint(1, CLASSES, (batch, anchors), generator=generator) * is_matched).to(where.device)
    last = []

    def step():
        optimizer.zero_grad(set_to_none=True)
        found = model.head(list(model.backbone(images).values()))
        loss = multibox_loss(found["bbox_regression"], found["cls_logits"], wanted_boxes, wanted_classes)
        loss.backward()
        optimizer.step()
        last[:] = [loss.detach()]

    return Prepared(step, lambda: [last[0].item()])
