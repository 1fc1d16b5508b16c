"""torch.compile: Inductor writes Triton kernels and times several of them to choose one, so sums are near, not the same; the second
mode replays them as CUDA graphs."""

import torch
from device import DEVICE
from say import attempts, near, same

torch.manual_seed(3)


def pointwise(x, y):
    return torch.nn.functional.gelu(x * 2 + y).sum(1) - y.amax(1)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(128)
        self.up, self.down = torch.nn.Linear(128, 512), torch.nn.Linear(512, 128)

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))


def fused_kernels():
    x, y = torch.randn(300, 1000, device=DEVICE), torch.randn(300, 1000, device=DEVICE)
    compiled = torch.compile(pointwise)
    found = compiled(x, y)
    same("close-to-eager", torch.allclose(found, pointwise(x, y), rtol=1e-3, atol=1e-3))
    near("fused", found.double().norm().item(), 1e-5)


def changing_shapes():
    compiled = torch.compile(pointwise, dynamic=True)
    for n in (8, 100, 257):
        x = torch.randn(n, n + 3, device=DEVICE)
        near(f"shape-{n}", compiled(x, x + 1).double().norm().item(), 1e-5)


def train(mode):
    torch.manual_seed(5)
    model = torch.nn.Sequential(Block(), Block()).to(DEVICE)
    compiled = torch.compile(model, mode=mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(64, 128, device=DEVICE)
    for n in range(8):
        optimizer.zero_grad()
        loss = compiled(x).square().mean()
        loss.backward()
        optimizer.step()
        near(f"{mode}-loss-{n}", loss.item(), 1e-4)


def training():
    train("default")


def training_with_graphs():
    train("reduce-overhead")


def inference_with_graphs():
    model = torch.compile(Block().to(DEVICE).eval(), mode="reduce-overhead")
    with torch.no_grad():
        for n in range(5):
            # The output lives in the graph's pool and is overwritten by the next replay.
            found = model(torch.full((32, 128), n / 3, device=DEVICE)).clone()
            near(f"replay-{n}", found.double().norm().item(), 1e-5)


attempts(fused_kernels, changing_shapes, training, training_with_graphs, inference_with_graphs)
