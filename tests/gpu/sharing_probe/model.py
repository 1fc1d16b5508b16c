"""ResNet-50, from torchvision where it is installed; otherwise the same layers written out."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, inside, planes, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, planes, 1, bias=False),
            nn.BatchNorm2d(planes),
            nn.ReLU(inplace=True),
            nn.Conv2d(planes, planes, 3, stride, 1, bias=False),
            nn.BatchNorm2d(planes),
            nn.ReLU(inplace=True),
            nn.Conv2d(planes, 4 * planes, 1, bias=False),
            nn.BatchNorm2d(4 * planes),
        )
        self.past = None
        if stride != 1 or inside != 4 * planes:
            self.past = nn.Sequential(nn.Conv2d(inside, 4 * planes, 1, stride, bias=False), nn.BatchNorm2d(4 * planes))

    def forward(self, x):
        return torch.relu(self.body(x) + (x if self.past is None else self.past(x)))


class ResNet50(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        inside = 64
        for at, (planes, blocks) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)], start=1):
            layers = [Block(inside, planes, 1 if at == 1 else 2)]
            inside = 4 * planes
            layers += [Block(inside, planes, 1) for _ in range(blocks - 1)]
            setattr(self, f"layer{at}", nn.Sequential(*layers))
        self.fc = nn.Linear(inside, 1000)

    def forward(self, x):
        x = self.stem(x)
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)
        return self.fc(x.mean((2, 3)))


def resnet50():
    try:
        import torchvision
    except ImportError:
        return ResNet50()
    return torchvision.models.resnet50(weights=None)
