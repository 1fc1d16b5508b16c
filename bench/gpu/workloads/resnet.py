"""ResNet-50: inference, with data on the host, training, and both as CUDA graphs."""

import torch

from . import models
from .workload import Prepared


def images(where, count, shape):
    generator = torch.Generator().manual_seed(models.SEED)
    return torch.randn(count, *shape, generator=generator)


def inference(where):
    model, shape = models.resnet(where.is_tiny)
    model.to(where.device).eval()
    x = images(where, 1, shape).to(where.device)
    last = []

    def step():
        with torch.no_grad():
            last[:] = [model(x)]

    return Prepared(step, lambda: [last[0].double().norm().item()])


def inference_from_the_host(where):
    """The images start in ordinary (pageable) memory and the answer ends there."""
    model, shape = models.resnet(where.is_tiny)
    model.to(where.device).eval()
    x = images(where, where.pick(64, 2), shape)
    last = []

    def step():
        with torch.no_grad():
            last[:] = [model(x.to(where.device)).cpu()]

    return Prepared(step, lambda: [last[0].double().norm().item()])


def training(where, batch):
    model, shape = models.resnet(where.is_tiny)
    model.to(where.device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    x = images(where, where.pick(batch, 2), shape).to(where.device)
    target = torch.arange(len(x), device=where.device) % 10
    last = []

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        last[:] = [loss.detach()]

    return Prepared(step, lambda: [last[0].item()])


def captured(eager):
    """The eager workload's step as a CUDA graph: a step is one replay."""

    def prepare(where):
        if where.device != "cuda":
            raise RuntimeError("graphs need a GPU")
        prepared = eager(where)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                prepared.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            prepared.step()
        # The graph's memory holds what `prepared` reads, so both live as long as the step does.
        return Prepared(graph.replay, prepared.probe)

    return prepare


def training_32(where):
    return training(where, 32)


def training_128(where):
    return training(where, 128)


inference_graph = captured(inference)
training_graph = captured(training_32)
