"""cuDNN: convolutions, normalisation and recurrent networks, forwards and backwards, with chosen and with timed algorithms."""

import torch
from device import DEVICE
from say import attempts, near, note, same

torch.backends.cudnn.deterministic = True


def convolve(x, weight, **options):
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = torch.nn.functional.conv2d(x, weight, **options)
    y.square().mean().backward()
    return [y.detach(), x.grad, weight.grad]


def tensors(dtype=torch.float32, memory_format=torch.contiguous_format):
    torch.manual_seed(7)
    x = torch.randn(8, 32, 28, 28).to(DEVICE, dtype).to(memory_format=memory_format)
    return x, torch.randn(64, 32, 3, 3).to(DEVICE, dtype).to(memory_format=memory_format)


def version():
    note("version", torch.backends.cudnn.version())
    return torch.backends.cudnn.is_available()


def convolution():
    return convolve(*tensors(), padding=1)


def strides_and_groups():
    x, weight = tensors()
    return [
        *convolve(x, weight, stride=2),
        *convolve(x, weight[:, :1], groups=32, dilation=2),
        *convolve(x, weight[:, :8], groups=4),
    ]


def half_channels_last():
    return convolve(*tensors(torch.float16, torch.channels_last), padding=1)


def bfloat16():
    return convolve(*tensors(torch.bfloat16), padding=1)


def full_precision():
    torch.backends.cudnn.allow_tf32 = False
    try:
        return convolve(*tensors(), padding=1)
    finally:
        torch.backends.cudnn.allow_tf32 = True


def timed_algorithms():
    """With benchmark mode cuDNN runs every algorithm and takes the fastest: which one may vary, so values only have to be near."""
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = True, False
    try:
        for n, found in enumerate(convolve(*tensors(), padding=1)):
            near(f"timed-{n}", found.double().norm().item(), 1e-3)
    finally:
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True


def transposed_and_3d():
    torch.manual_seed(8)
    x = torch.randn(2, 16, 9, 9).to(DEVICE)
    y = torch.nn.functional.conv_transpose2d(x, torch.randn(16, 8, 4, 4).to(DEVICE), stride=2)
    z = torch.nn.functional.conv3d(torch.randn(2, 4, 8, 8, 8).to(DEVICE), torch.randn(6, 4, 3, 3, 3).to(DEVICE))
    return [y, z, torch.nn.functional.conv1d(x.flatten(2), torch.randn(5, 16, 7).to(DEVICE))]


def batch_normalisation():
    torch.manual_seed(9)
    norm = torch.nn.BatchNorm2d(32).to(DEVICE)
    x = torch.randn(16, 32, 20, 20).to(DEVICE).requires_grad_()
    y = norm(x)
    y.sin().sum().backward()
    return [y.detach(), x.grad, norm.running_mean, norm.running_var, norm.eval()(x).detach()]


def recurrent():
    torch.manual_seed(10)
    found = []
    for kind in (torch.nn.LSTM, torch.nn.GRU):
        layer = kind(32, 48, num_layers=2, bidirectional=True, batch_first=True).to(DEVICE)
        x = torch.randn(4, 15, 32).to(DEVICE).requires_grad_()
        y, _ = layer(x)
        y.square().mean().backward()
        found += [y.detach(), x.grad]
    same("recurrent-outputs", len(found))
    return found


attempts(
    version,
    convolution,
    strides_and_groups,
    half_channels_last,
    bfloat16,
    full_precision,
    timed_algorithms,
    transposed_and_3d,
    batch_normalisation,
    recurrent,
)
