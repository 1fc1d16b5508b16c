"""Autograd: its own thread per device, backward passes from several threads at once, hooks, checkpoints, second derivatives."""

import threading

import torch
from device import DEVICE
from say import attempts
from torch.utils.checkpoint import checkpoint


def network(seed):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 128), torch.nn.GELU(), torch.nn.Linear(128, 10)]
    return torch.nn.Sequential(*layers).to(DEVICE)


def gradients(seed, steps=5):
    model = network(seed)
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return [parameter.grad for parameter in model.parameters()] + list(model.parameters())


def one_thread():
    return gradients(3)


def eight_threads():
    """Each thread has a network of its own; the backward passes meet in the engine's thread."""
    found = [None] * 8

    def work(n):
        if DEVICE == "cuda":
            with torch.cuda.stream(torch.cuda.Stream()):
                found[n] = gradients(n)
                torch.cuda.current_stream().synchronize()
        else:
            found[n] = gradients(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return [tensor for tensors in found for tensor in tensors]


def one_graph_from_many_threads():
    """Threads share the parameters; each computes its own gradients with autograd.grad."""
    model = network(1)
    found = [None] * 4

    def work(n):
        x = torch.full((16, 64), n / 10, device=DEVICE)
        found[n] = torch.autograd.grad(model(x).sum(), list(model.parameters()))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return [tensor for tensors in found for tensor in tensors]


def second_derivatives():
    x = torch.linspace(-2, 2, 50, device=DEVICE, requires_grad=True)
    y = (x.sin() * x.exp()).sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return [first, second]


def checkpoints():
    model = network(5)
    x = torch.ones(8, 64, device=DEVICE, requires_grad=True)
    checkpoint(model, x, use_reentrant=False).sum().backward()
    return [x.grad] + [parameter.grad for parameter in model.parameters()]


def hooks_that_read_back():
    """A hook waits for the GPU inside the backward thread."""
    seen = []
    x = torch.ones(10, device=DEVICE, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: seen.append(gradient.sum().item()))
    (y * y).sum().backward()
    return seen


def custom_function():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(context, gradient):
            (x,) = context.saved_tensors
            return gradient * 3 * x * x

    x = torch.arange(6.0, device=DEVICE, requires_grad=True)
    Cube.apply(x).sum().backward()
    return x.grad


attempts(
    one_thread, eight_threads, one_graph_from_many_threads, second_derivatives, checkpoints, hooks_that_read_back, custom_function
)
