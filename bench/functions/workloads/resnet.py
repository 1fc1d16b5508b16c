"""ResNet-50, and ImageNet classification with it in batches of 16."""

import torch
from common import Workload, checksum, random_batches
from torch import nn


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out),
        )
        is_same = stride == 1 and channels == out
        self.way = nn.Identity() if is_same else nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return torch.relu(self.body(x) + self.way(x))


class Backbone(nn.Module):
    """The stages of a ResNet; returns what each of the last three makes."""

    def __init__(self, blocks, width):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        stages, channels = [], width
        for number, count in enumerate(blocks):
            own = width << number
            layers = []
            for layer in range(count):
                layers.append(Bottleneck(channels, own, 2 if layer == 0 and number > 0 else 1))
                channels = 4 * own
            stages.append(nn.Sequential(*layers))
        self.stages = nn.ModuleList(stages)
        self.channels = [4 * (width << number) for number in range(len(blocks))]

    def forward(self, x):
        x, outputs = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            outputs.append(x)
        return outputs


class Classifier(nn.Module):
    def __init__(self, blocks, width, classes):
        super().__init__()
        self.backbone = Backbone(blocks, width)
        self.head = nn.Linear(self.backbone.channels[-1], classes)

    def forward(self, x):
        return self.head(self.backbone(x)[-1].mean((2, 3)))


def make(is_tiny):
    return Classifier((1, 1, 1, 1), 8, 10) if is_tiny else Classifier((3, 4, 6, 3), 64, 1000)


def run(model, where, is_tiny):
    count, shape = (1, (2, 3, 64, 64)) if is_tiny else (64, (16, 3, 224, 224))
    outputs = [model(batch) for batch in random_batches(where, count, shape)]
    return {"images": count * shape[0], "mean": checksum(torch.cat(outputs))}


handler = Workload("resnet", make, run)
