"""Kernels that PyTorch compiles at run time with NVRTC: jiterator, TorchScript's fuser, and operators it never precompiled."""

import torch
from say import attempts, same


def own_kernels():
    code = "template <typename T> T shifted(T x, T y, T a) { return a * x + y - T(1); }"
    shifted = torch.cuda.jiterator._create_jit_fn(code, a=2.0)
    x = torch.arange(10000, device="cuda", dtype=torch.float32)
    return [shifted(x, x), shifted(x, x, a=5.0), shifted(x.double(), x.double())]


def own_kernels_with_several_outputs():
    code = "template <typename T> void both(T x, T y, T& sum, T& product) { sum = x + y; product = x * y; }"
    both = torch.cuda.jiterator._create_multi_output_jit_fn(code, num_outputs=2)
    x = torch.linspace(-1, 1, 5000, device="cuda")
    return list(both(x, x + 3))


def special_functions():
    # These are compiled when they are first used.
    x = torch.linspace(0.1, 20, 4000, device="cuda")
    special = torch.special
    return [
        special.bessel_j0(x),
        special.i1(x),
        special.zeta(x + 1, x),
        special.modified_bessel_k1(x),
        torch.lcm(x.int(), x.int() + 4),
        torch.gcd(x.int(), 12 * torch.ones_like(x.int())),
    ]


def scripted():
    @torch.jit.script
    def fused(x, y):
        z = x * 2.0 + y
        return torch.tanh(z) * torch.sigmoid(x) - y

    x, y = torch.linspace(-3, 3, 9000, device="cuda"), torch.linspace(2, 1, 9000, device="cuda")
    for _ in range(5):
        found = fused(x, y)
    expected = torch.tanh(x * 2 + y) * torch.sigmoid(x) - y
    same("fused-is-close", torch.allclose(found, expected, atol=1e-5))
    return found


def a_kernel_that_does_not_compile():
    broken = torch.cuda.jiterator._create_jit_fn("template <typename T> T broken(T x) { return no_such_thing(x); }")
    try:
        broken(torch.ones(3, device="cuda"))
    except RuntimeError as error:
        return "no_such_thing" in str(error)
    return "compiled"


attempts(own_kernels, own_kernels_with_several_outputs, special_functions, scripted, a_kernel_that_does_not_compile)
