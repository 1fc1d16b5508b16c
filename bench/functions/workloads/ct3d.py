"""A classifier of CT volumes: DenseNet-121 with three-dimensional convolutions."""

import torch
from common import Workload, checksum, random_batches
from torch import nn


class Layer(nn.Module):
    def __init__(self, channels, growth):
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm3d(channels), nn.ReLU(), nn.Conv3d(channels, 4 * growth, 1, bias=False),
            nn.BatchNorm3d(4 * growth), nn.ReLU(), nn.Conv3d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x):
        return torch.cat([x, self.body(x)], 1)


def densenet(blocks, growth, first):
    channels = first
    parts = [nn.Conv3d(1, first, 7, stride=2, padding=3, bias=False), nn.BatchNorm3d(first), nn.ReLU(), nn.MaxPool3d(3, 2, 1)]
    for number, layers in enumerate(blocks):
        for _ in range(layers):
            parts.append(Layer(channels, growth))
            channels += growth
        if number + 1 < len(blocks):
            parts += [nn.BatchNorm3d(channels), nn.ReLU(), nn.Conv3d(channels, channels // 2, 1, bias=False), nn.AvgPool3d(2)]
            channels //= 2
    parts += [nn.BatchNorm3d(channels), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(channels, 2)]
    return nn.Sequential(*parts)


def make(is_tiny):
    return densenet((2, 2), 4, 8) if is_tiny else densenet((6, 12, 24, 16), 32, 64)


def run(model, where, is_tiny):
    count, shape = (1, (1, 1, 32, 32, 32)) if is_tiny else (8, (2, 1, 160, 224, 224))
    outputs = [model(batch) for batch in random_batches(where, count, shape)]
    return {"volumes": count * shape[0], "mean": checksum(torch.cat(outputs))}


handler = Workload("ct3d", make, run)
