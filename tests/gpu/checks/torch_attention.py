"""Scaled dot product attention by each of its kernels: flash, memory-efficient, cuDNN's and plain, forwards and backwards."""

import deterministic  # noqa: F401  (sets what cuBLAS reads when it starts)
import torch
from device import DEVICE
from say import attempt, near
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

# Without this the backward kernels add in any order.
torch.use_deterministic_algorithms(True)


def attend(backend, dtype, is_causal, mask=None):
    torch.manual_seed(11)
    q, k, v = (torch.randn(2, 8, 256, 64).to(DEVICE, dtype).requires_grad_() for _ in range(3))
    with sdpa_kernel(backend):
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)
        out.square().mean().backward()
    return [out.detach(), q.grad, k.grad, v.grad]


KERNELS = {
    "flash": (SDPBackend.FLASH_ATTENTION, torch.float16),
    "flash-bf16": (SDPBackend.FLASH_ATTENTION, torch.bfloat16),
    "efficient": (SDPBackend.EFFICIENT_ATTENTION, torch.float32),
    "efficient-half": (SDPBackend.EFFICIENT_ATTENTION, torch.float16),
    "plain": (SDPBackend.MATH, torch.float32),
}
for name, (backend, dtype) in KERNELS.items():
    for is_causal in (False, True):
        attempt(f"{name}-{'causal' if is_causal else 'full'}", lambda: attend(backend, dtype, is_causal))

mask = (torch.arange(256, device=DEVICE)[:, None] - torch.arange(256, device=DEVICE)[None, :]).abs() < 50
attempt("efficient-masked", lambda: attend(SDPBackend.EFFICIENT_ATTENTION, torch.float32, False, mask))
attempt("plain-masked", lambda: attend(SDPBackend.MATH, torch.float32, False, mask))


def cudnn():
    """cuDNN's backward kernel is not deterministic; its norms are near."""
    torch.use_deterministic_algorithms(False)
    for n, found in enumerate(attend(SDPBackend.CUDNN_ATTENTION, torch.bfloat16, True)):
        near(f"cudnn-{n}", found.double().norm().item(), 1e-2)


attempt("cudnn", cudnn)
