"""Face identification as ArcFace: an improved ResNet-100 makes embeddings of 112 x 112 faces, which are looked up in a gallery."""

import torch
from common import SEED, Workload, checksum, random_batches
from torch import nn


class Block(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(channels), nn.Conv2d(channels, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out), nn.PReLU(out),
            nn.Conv2d(out, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out),
        )
        is_same = stride == 1 and channels == out
        self.way = nn.Identity() if is_same else nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return self.body(x) + self.way(x)


class Faces(nn.Module):
    def __init__(self, blocks, width, size, people):
        super().__init__()
        parts, channels = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.PReLU(width)], width
        for number, count in enumerate(blocks):
            out = width << number
            for layer in range(count):
                parts.append(Block(channels, out, 2 if layer == 0 else 1))
                channels = out
        side = size >> len(blocks)
        parts += [nn.BatchNorm2d(channels), nn.Flatten(), nn.Linear(channels * side * side, 512), nn.BatchNorm1d(512)]
        self.embed = nn.Sequential(*parts)
        self.register_buffer("gallery", torch.randn(people, 512))

    def forward(self, faces):
        found = nn.functional.normalize(self.embed(faces))
        return (found @ nn.functional.normalize(self.gallery).T).max(1)


def make(is_tiny):
    return Faces((1, 1), 8, 16, 50) if is_tiny else Faces((3, 13, 30, 3), 64, 112, 100_000)


def run(model, where, is_tiny):
    count, shape = (1, (2, 3, 16, 16)) if is_tiny else (64, (16, 3, 112, 112))
    best = [model(batch).values for batch in random_batches(where, count, shape)]
    return {"faces": count * shape[0], "mean": checksum(torch.cat(best)), "seed": SEED}


handler = Workload("face_identification", make, run)
