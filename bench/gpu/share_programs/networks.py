"""The measured pair, in PyTorch. `online`: ResNet-50, fp16, batch 4, as a CUDA graph. `offline`: training of ResNet-50 (fp32, batch
32), eager and as a CUDA graph, and products of large matrices (bf16, 8192)."""

import os
import sys

import torch
from serve import Server

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "tests", "gpu", "sharing_probe"))
from model import resnet50  # noqa: E402


def online():
    torch.manual_seed(0)
    model = resnet50().cuda().half().eval().to(memory_format=torch.channels_last)
    x = torch.randn(4, 3, 224, 224, device="cuda", dtype=torch.half).to(memory_format=torch.channels_last)
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            model(x)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            y = model(x)

    def request():
        with torch.cuda.stream(stream):
            graph.replay()
        stream.synchronize()

    # The graph has addresses of these alone, which do not keep them alive.
    request.kept = (model, x)
    request()
    right = y.clone()
    return Server(request=request, check=lambda: bool(torch.equal(y, right)))


def captured(step):
    """A step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def offline():
    torch.manual_seed(0)
    model = resnet50().cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    x, target = torch.randn(32, 3, 224, 224, device="cuda"), torch.arange(32, device="cuda")
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def step():
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()

    def train():
        step()
        torch.cuda.synchronize()

    last = []

    def product():
        for _ in range(4):
            last[:] = [a @ b]
        torch.cuda.synchronize()

    graphs = []

    def graph():
        if not graphs:
            graphs.append(captured(step))
        graphs[0].replay()
        torch.cuda.synchronize()

    for _ in range(3):
        train()
    product()
    right = last[0].clone()
    return Server(works={"train": train, "product": product, "graph": graph}, check=lambda: bool(torch.equal(last[0], right)))


{"online": online, "offline": offline}[sys.argv[1]]().serve()
