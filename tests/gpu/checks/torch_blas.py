"""cuBLAS and cuBLASLt: products of every type, epilogues, batches, strides, and a workspace of a fixed size."""

import torch
from device import DEVICE
from say import attempts, same

torch.manual_seed(12)


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(DEVICE, dtype)


def products():
    a, b = random(513, 257), random(257, 129)
    return [
        a @ b,
        a.T.contiguous().T @ b,
        torch.mm(b.T, a.T),
        torch.addmm(random(129), a, b, beta=0.5, alpha=2),
        torch.mv(a, b[:, 0]),
        torch.dot(b[:, 0], b[:, 1]),
    ]


def tensor_float():
    a, b = random(1024, 1024), random(1024, 1024)
    exact = a @ b
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        rounded = a @ b
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    same("tf32-rounds", not torch.equal(exact, rounded) if DEVICE == "cuda" else True)
    return [exact, rounded]


def half_types():
    found = []
    for dtype in (torch.float16, torch.bfloat16):
        a, b = random(640, 384, dtype=dtype), random(384, 768, dtype=dtype)
        found += [a @ b, torch.addmm(random(768, dtype=dtype), a, b)]
    return found


def doubles_and_complex():
    a = random(200, 200, dtype=torch.float64)
    c = torch.complex(random(100, 100), random(100, 100))
    return [a @ a, c @ c, c @ c.mH]


def batches():
    a, b = random(33, 64, 48), random(33, 48, 80)
    return [torch.bmm(a, b), torch.einsum("bij,bjk->ik", a, b), a @ b[0], torch.baddbmm(random(33, 64, 80), a, b)]


def linear_with_epilogues():
    """Bias, bias with ReLU and with GELU, and their backward passes: cuBLASLt fuses them."""
    found = []
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = random(128, 256, dtype=dtype).requires_grad_()
        weight, bias = random(512, 256, dtype=dtype).requires_grad_(), random(512, dtype=dtype).requires_grad_()
        for activation in (torch.nn.functional.relu, torch.nn.functional.gelu):
            y = activation(torch.nn.functional.linear(x, weight, bias))
            y.float().mean().backward()
            found += [y.detach(), x.grad.clone(), weight.grad.clone(), bias.grad.clone()]
    if DEVICE == "cuda":
        fused = torch._addmm_activation(bias.detach(), x.detach(), weight.detach().T, use_gelu=True)
        found.append(fused)
    return found


def whole_numbers():
    a = torch.randint(-100, 100, (256, 512), dtype=torch.int8).to(DEVICE)
    b = torch.randint(-100, 100, (512, 128), dtype=torch.int8).to(DEVICE)
    found = torch._int_mm(a, b)
    same("int8-is-exact", torch.equal(found.cpu(), a.cpu().int() @ b.cpu().int()))
    return found


def eight_bit_floats():
    a = random(256, 512).to(torch.float8_e4m3fn)
    b = random(128, 512).to(torch.float8_e4m3fn).T
    one = torch.ones((), device=DEVICE)
    return torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def triangular():
    a = random(150, 150).tril() + 20 * torch.eye(150, device=DEVICE)
    return [
        torch.linalg.solve_triangular(a, random(150, 7), upper=False),
        torch.linalg.solve_triangular(a.T.expand(4, -1, -1), random(4, 150, 3), upper=True),
    ]


def on_several_streams():
    """A handle per thread and stream, each with its workspace."""
    if DEVICE != "cuda":
        return [random(3)]
    a = random(700, 700)
    found = []
    for _ in range(4):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found.append(a @ a)
        torch.cuda.current_stream().wait_stream(stream)
    return found


attempts(
    products,
    tensor_float,
    half_types,
    doubles_and_complex,
    batches,
    linear_with_epilogues,
    whole_numbers,
    eight_bit_floats,
    triangular,
    on_several_streams,
)
