"""The measured programs, in PyTorch.

`online`:   graph    ResNet-50, fp16, batch 4, as a CUDA graph
            eager    the same, not as a graph
            decode   a decoder of GPT-2's size, fp16, batch 4: 8 tokens, each a CUDA graph and a read of the tokens
`offline`:  train    training of ResNet-50, fp32, batch 32
            graph    the same as a CUDA graph
            bert     training of BERT-base, fp32, 8 x 128
            product  four products of matrices, bf16, 8192
"""

import gc
import os
import sys

# cuBLAS reads it when it begins: with it, products have the same bits each time.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402
from exact import DEVICE, Comparison, bits, digest, exact_algorithms, wait  # noqa: E402
from language import Bert, Decoder  # noqa: E402
from serve import Request, Server, Work  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "tests", "gpu", "sharing_probe"))
from model import resnet50  # noqa: E402

PROMPT, TOKENS = 128, 8
WARM_STEPS = 3


def captured(step):
    """A step as a CUDA graph, and what the step returned when it was recorded."""
    wait()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return graph, result


def vision():
    """ResNet-50 and its input."""
    torch.manual_seed(0)
    model = resnet50().to(DEVICE)
    x = torch.randn(4, 3, 224, 224, device=DEVICE)
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            # One run in training mode then sets the statistics. With those of a new network, fp16 may overflow.
            layer.momentum = None
    with torch.no_grad():
        model.train()(x)
    model = model.half().eval().to(memory_format=torch.channels_last)
    return model, x.half().to(memory_format=torch.channels_last)


def vision_graph():
    model, x = vision()
    with torch.no_grad():
        comparison = Comparison(model(x))

        def forward():
            y = model(x)
            comparison.note(y)
            return y

        graph, y = captured(forward)
    stream = torch.cuda.Stream()

    def run():
        with torch.cuda.stream(stream):
            graph.replay()
        stream.synchronize()

    # The graph has addresses of these alone, which do not keep them alive.
    run.kept = (model, x, y, comparison)
    run()
    comparison.learn(y)
    return Request(run, comparison.check)


def vision_eager():
    model, x = vision()
    with torch.no_grad():
        first = model(x)
    comparison = Comparison(first)
    comparison.learn(first)

    def run():
        with torch.no_grad():
            comparison.note(model(x))
        wait()

    return Request(run, comparison.check)


def decode():
    torch.manual_seed(0)
    decoder = Decoder(rows=4, positions=256, device=DEVICE, dtype=torch.half)
    decoder.begin(PROMPT)
    # Without a GPU there are no graphs, and the step itself is tried.
    with torch.no_grad():
        graph, scores = captured(decoder.step) if DEVICE == "cuda" else (None, decoder.step())
    comparison = Comparison(scores)

    def tokens():
        decoder.begin(PROMPT)
        for _ in range(TOKENS):
            if graph is None:
                with torch.no_grad():
                    scores.copy_(decoder.step())
            else:
                graph.replay()
            # As a server does, which sends each token and looks whether it is the last.
            decoder.token.tolist()

    def run():
        tokens()
        comparison.note(scores)
        wait()

    tokens()
    comparison.learn(scores)
    return Request(run, comparison.check)


class Training:
    """Steps of a training, and a way back to the state after the first ones."""

    def __init__(self, model, optimizer, loss, is_graph=False):
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.graph = None
        if is_graph:
            self.graph, _ = captured(self.eager)
        else:
            for _ in range(WARM_STEPS):
                self.eager()
        kept = [value for values in optimizer.state.values() for value in values.values() if torch.is_tensor(value)]
        self.results = [*model.parameters(), *model.buffers()]
        self.state = [*self.results, *kept]
        wait()
        self.start = [tensor.detach().clone() for tensor in self.state]
        wait()

    def eager(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.loss(self.model).backward()
        self.optimizer.step()

    def step(self):
        if self.graph is None:
            self.eager()
        else:
            self.graph.replay()
        wait()

    def digest_after(self, steps):
        with torch.no_grad():
            for tensor, value in zip(self.state, self.start):
                tensor.copy_(value)
        for _ in range(steps):
            self.step()
        return digest(self.results)


def resnet_training(is_graph):
    torch.manual_seed(0)
    model = resnet50().to(DEVICE).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    x, target = torch.randn(32, 3, 224, 224, device=DEVICE), torch.arange(32, device=DEVICE)
    return Training(model, optimizer, lambda model: torch.nn.functional.cross_entropy(model(x), target), is_graph)


def bert_training():
    torch.manual_seed(0)
    model = Bert().to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    x = torch.randint(0, Bert.VOCABULARY, (8, 128), device=DEVICE)
    target = torch.arange(8, device=DEVICE) % 2
    return Training(model, optimizer, lambda model: torch.nn.functional.cross_entropy(model(x), target))


def training(make):
    """The work of a training. It verifies with a second one, whose algorithms are exact: those are slower, and not measured. The
    second one is given back afterwards, because the programs of all sides share one GPU's memory."""
    measured, exact = make(), []

    def verify(steps):
        with exact_algorithms():
            if not exact:
                exact.append(make())
            return exact[0].digest_after(steps)

    def release():
        exact.clear()
        gc.collect()
        torch.cuda.empty_cache()

    return Work(measured.step, verify, release=release)


def product():
    torch.manual_seed(0)
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    last = []

    def step():
        for _ in range(4):
            last[:] = [a @ b]
        wait()

    def verify(steps):
        for _ in range(steps):
            step()
        return digest(last)

    step()
    right = last[0].clone()
    return Work(step, verify, lambda: bool(torch.equal(bits(last[0]), bits(right))))


def main():
    if sys.argv[1] == "online":
        # Its answers are compared with its first one.
        torch.backends.cudnn.deterministic = True
        Server(requests={"graph": vision_graph, "eager": vision_eager, "decode": decode}).serve()
    else:
        works = {
            "train": lambda: training(lambda: resnet_training(False)),
            "graph": lambda: training(lambda: resnet_training(True)),
            "bert": lambda: training(bert_training),
            "product": product,
        }
        Server(works=works).serve()


if __name__ == "__main__":
    main()
