"""CUDA graphs from PyTorch: capture, replay, shared pools, training steps, graphed callables, and what capture forbids."""

import torch
from say import attempts, refused, same

torch.manual_seed(2)


def warmed(body):
    """As PyTorch asks: run a few times on a side stream before the capture."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            body()
    torch.cuda.current_stream().wait_stream(stream)


def inference():
    model = (
        torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 30 * 30, 10))
        .cuda()
        .eval()
    )
    x = torch.zeros(4, 3, 32, 32, device="cuda")
    found = []
    with torch.no_grad():
        warmed(lambda: model(x))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        for n in range(5):
            x.fill_(n)
            graph.replay()
            found.append(y.clone())
            same(f"as-eager-{n}", torch.equal(y, model(x)))
    return found


def training():
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, target = torch.randn(32, 64, device="cuda"), torch.randint(0, 4, (32,), device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        return loss

    warmed(step)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = step()
    losses = []
    for _ in range(20):
        graph.replay()
        losses.append(loss.clone())
    return [*losses, *model.parameters()]


def two_graphs_in_one_pool():
    x = torch.ones(1000, device="cuda")
    pool = torch.cuda.graph_pool_handle()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first, pool=pool):
        y = x * 2
    with torch.cuda.graph(second, pool=pool):
        z = y + 1
    found = []
    for n in range(4):
        x.fill_(n)
        first.replay()
        second.replay()
        found += [y.clone(), z.clone()]
    return found


def several_streams_in_one_capture():
    x = torch.randn(512, 512, device="cuda")
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    warmed(lambda: x @ x)
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            a = x.sin()
        b = x.cos()
        torch.cuda.current_stream().wait_stream(side)
        c = a * b
    x.normal_(generator=torch.Generator("cuda").manual_seed(4))
    graph.replay()
    return [a, b, c]


def random_numbers_move_on():
    torch.manual_seed(9)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x = torch.rand(100, device="cuda")
    found = []
    for _ in range(3):
        graph.replay()
        found.append(x.clone())
    same("each-replay-differs", not torch.equal(found[0], found[1]))
    return found


def graphed_callables():
    torch.manual_seed(3)
    module = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32)).cuda()
    sample = torch.randn(16, 32, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(module, (sample,))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for n in range(5):
        x = torch.full((16, 32), n / 5, device="cuda", requires_grad=True)
        optimizer.zero_grad()
        loss = graphed(x).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return [*losses, *module.parameters()]


def copies_inside():
    x = torch.arange(1 << 16, dtype=torch.float32).pin_memory()
    there = torch.zeros(1 << 16, device="cuda")
    back = torch.zeros(1 << 16).pin_memory()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        there.copy_(x, non_blocking=True)
        there.mul_(2)
        back.copy_(there, non_blocking=True)
    found = []
    for n in range(3):
        # The graph reads the host memory of the moment, not of the capture.
        x.fill_(n)
        graph.replay()
        torch.cuda.synchronize()
        found.append(back.clone())
    return found


def a_forbidden_call_in_a_capture():
    """Waiting for the device is not allowed while capturing; the process must be usable afterwards."""
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(10, device="cuda")

    def capture():
        with torch.cuda.graph(graph):
            (x + 1).cpu()

    refused("refusal", capture, RuntimeError)
    torch.cuda.synchronize()
    return (x + 2).cpu()


attempts(
    inference,
    training,
    two_graphs_in_one_pool,
    several_streams_in_one_capture,
    random_numbers_move_on,
    graphed_callables,
    copies_inside,
    a_forbidden_call_in_a_capture,
)
