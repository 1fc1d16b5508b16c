"""Works for ever, one line a step: `step N seconds-since-the-epoch value`. An error is told with its time.

The work is one of: training of an MLP, ResNet-50 or BERT (the value is the loss), decoding by GPT-2, ResNet-50 as a CUDA graph.

Deterministic: step N has the same value in every run, whatever happens to others. With TRAIN_FLAGS=default as most programs are: the
libraries take the fastest algorithms, and values may differ from run to run.
"""

import os
import sys
import time

IS_DEFAULT = os.environ.get("TRAIN_FLAGS") == "default"
if not IS_DEFAULT:
    import deterministic  # noqa: F401  (sets what cuBLAS reads when it starts)
import torch  # noqa: E402
from say import note, same  # noqa: E402
from workloads import models  # noqa: E402

torch.use_deterministic_algorithms(not IS_DEFAULT)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 40
kind = sys.argv[2] if len(sys.argv) > 2 else "mlp"
torch.backends.cudnn.benchmark = IS_DEFAULT


def training():
    """A step of training, whose loss is what is observed."""
    fixed = torch.Generator().manual_seed(1)
    if kind == "resnet":
        model, shape = models.resnet()
        x, target = torch.randn(16, *shape, generator=fixed).cuda(), torch.arange(16, device="cuda") % 10
        loss_of = lambda: torch.nn.functional.cross_entropy(model(x), target)  # noqa: E731
    elif kind == "bert":
        model, vocabulary = models.bert_classifier()
        x, labels = torch.randint(1, vocabulary, (8, 128), generator=fixed).cuda(), torch.arange(8, device="cuda") % 2
        loss_of = lambda: model(x, labels=labels).loss  # noqa: E731
    else:
        model, width = models.mlp()
        x = torch.randn(32, width, generator=fixed).cuda()
        loss_of = lambda: (model(x) - x).square().mean()  # noqa: E731
    model.cuda().train()
    torch.manual_seed(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(_):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def decoding():
    """GPT-2 decodes eight more tokens; what is observed is a number made of them."""
    model, vocabulary = models.gpt2()
    model.cuda().eval()
    generator = torch.Generator().manual_seed(1)

    def step(_):
        prompt = torch.randint(1, vocabulary, (1, 16), generator=generator).cuda()
        tokens = models.generate(model, prompt, 8)[0].tolist()
        return float(sum(token * 31**place % 1000003 for place, token in enumerate(tokens)))

    return step


def graph():
    """ResNet-50 inference as a CUDA graph with another input each time; what is observed is its output's sum."""
    model, shape = models.resnet()
    model.cuda().eval()
    generator = torch.Generator().manual_seed(1)
    x = torch.zeros(4, *shape, device="cuda")
    with torch.no_grad():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                model(x)
        stream.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            y = model(x)

    def step(_):
        x.copy_(torch.randn(4, *shape, generator=generator))
        captured.replay()
        return y.double().sum().item()

    return step


step = {"gpt2": decoding, "graph": graph}.get(kind, training)()
x = torch.zeros(8, device="cuda")
try:
    for n in range(steps):
        value = step(n)
        print(f"step {n} {time.time():.6f} {value.hex()}", flush=True)
except RuntimeError as error:
    told = time.time()
    same("error", str(error).splitlines()[0])
    note("type", type(error).__name__)
    print(f"error-at {told:.6f}", flush=True)
    # Every later call must fail at once, and none may hang.
    began = time.monotonic()
    for body in (lambda: x + 1, torch.cuda.synchronize, lambda: x.cpu(), lambda: torch.zeros(1, device="cuda")):
        try:
            body()
            same("later-call", "no error")
        except RuntimeError:
            same("later-call", "error")
    note("later-calls-seconds", time.monotonic() - began)
    print("ended-well", flush=True)
