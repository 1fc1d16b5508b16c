"""Face detection as RetinaFace: ResNet-50, a feature pyramid, context modules, heads for faces, boxes and landmarks, suppression."""

import torch
from common import Workload, random_batches
from resnet import Backbone
from torch import nn
from torch.nn import functional


def conv(inputs, outputs, size=3):
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, 1, size // 2, bias=False), nn.BatchNorm2d(outputs))


class Context(nn.Module):
    """Three widths of sight beside each other."""

    def __init__(self, channels):
        super().__init__()
        half, quarter = channels // 2, channels // 4
        self.near = conv(channels, half)
        self.way = conv(channels, quarter)
        self.middle = conv(quarter, quarter)
        self.far = nn.Sequential(conv(quarter, quarter), nn.ReLU(), conv(quarter, quarter))

    def forward(self, x):
        way = torch.relu(self.way(x))
        return torch.relu(torch.cat([self.near(x), self.middle(way), self.far(way)], 1))


class Detector(nn.Module):
    ANCHORS = 2

    def __init__(self, blocks, width, channels):
        super().__init__()
        self.backbone = Backbone(blocks, width)
        self.sides = nn.ModuleList(conv(own, channels, 1) for own in self.backbone.channels[1:])
        self.merges = nn.ModuleList(conv(channels, channels) for _ in range(2))
        self.contexts = nn.ModuleList(Context(channels) for _ in range(3))
        # Face or not, four numbers of a box, five landmarks.
        self.heads = nn.ModuleList(nn.Conv2d(channels, self.ANCHORS * 16, 1) for _ in range(3))

    def forward(self, images):
        levels = [torch.relu(side(level)) for side, level in zip(self.sides, self.backbone(images)[1:])]
        for number in (1, 0):
            larger = functional.interpolate(levels[number + 1], size=levels[number].shape[2:])
            levels[number] = torch.relu(self.merges[number](levels[number] + larger))
        found = []
        for level, context, head in zip(levels, self.contexts, self.heads):
            out = head(context(level))
            found.append(out.permute(0, 2, 3, 1).reshape(out.shape[0], -1, 16))
        return torch.cat(found, 1)


def suppressed(boxes, scores, most, overlap):
    """Which boxes stay: the best one, and none that covers it; on the device, without a question to it for each box."""
    best = scores.topk(min(most, scores.numel())).indices
    boxes = boxes[best]
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    common = (high - low).clamp(min=0).prod(2)
    area = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(1)
    over = (common / (area[:, None] + area[None, :] - common).clamp(min=1e-6) > overlap).triu(1)
    keep = torch.ones(len(best), dtype=torch.bool, device=boxes.device)
    for number in range(len(best)):
        keep &= ~(over[number] & keep[number])
    return best[keep]


def make(is_tiny):
    return Detector((1, 1, 1, 1), 8, 16) if is_tiny else Detector((3, 4, 6, 3), 64, 256)


def run(model, where, is_tiny):
    count, shape, most = (1, (1, 3, 64, 64), 20) if is_tiny else (8, (16, 3, 640, 640), 200)
    faces = 0
    for images in random_batches(where, count, shape):
        for out in model(images):
            scores = out[:, :2].softmax(1)[:, 1]
            middle, size = out[:, 2:4].sigmoid(), out[:, 4:6].sigmoid() * 0.2
            faces += suppressed(torch.cat([middle - size, middle + size], 1), scores, most, 0.4).numel()
    return {"images": count * shape[0], "kept": faces}


handler = Workload("face_detection", make, run)
