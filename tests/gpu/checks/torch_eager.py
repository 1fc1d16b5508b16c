"""PyTorch eager: one of each family of operations, to the bit."""

import torch
from device import DEVICE
from say import attempts, same

torch.manual_seed(1)


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, device=DEVICE)


def elementwise():
    x = random(1000, 333)
    return [
        torch.sin(x) * 2 + x.exp().clamp(max=9),
        torch.nn.functional.gelu(x),
        x.sigmoid().pow(3),
        torch.erf(x) - x.abs().log1p(),
    ]


def every_type():
    found = []
    for dtype in (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.int8,
        torch.uint8,
        torch.int16,
        torch.int32,
        torch.int64,
    ):
        x = torch.arange(-500, 500, device=DEVICE).to(dtype)
        found += [x * 3 + x, (x > 2), x.to(torch.float32) / 7]
    return found


def complex_numbers():
    x = torch.complex(random(64, 64), random(64, 64))
    return [x * x.conj(), x.abs(), x.angle(), torch.view_as_real(x.exp())]


def broadcasting_and_views():
    x = random(7, 1, 5, 3)
    y = random(1, 6, 5, 1)
    z = (x * y).transpose(1, 3)
    return [z, z.contiguous(), z.flip(0), z.reshape(-1)[::3], z.unfold(2, 2, 1).sum(-1)]


def reductions():
    x = random(513, 1027)
    return [
        x.sum(),
        x.sum(0),
        x.mean(1),
        x.max(0).values,
        x.argmin(1),
        x.var(),
        x.norm(),
        x.prod(1),
        x.logsumexp(0),
        (x > 0).any(1),
    ]


def scans():
    x = random(200, 300)
    return [x.cumsum(0), x.cumprod(1), x.cummax(1).indices, torch.logcumsumexp(x, 0)]


def sorting():
    x = random(300, 5000)
    values, places = x.sort(dim=1, stable=True)
    top, _ = x.topk(17, dim=1)
    return [values, places, top, x.median(1).values, x.kthvalue(5, 1).values, torch.unique((x * 3).to(torch.int32))]


def long_sorts():
    x = torch.randperm(1 << 20, device=DEVICE)
    return [x.sort().values, x.argsort()[:100], torch.bincount(x % 91), torch.histc(x.float(), 50)]


def indexing():
    x = random(1000, 40)
    places = torch.randint(0, 1000, (500,), device=DEVICE)
    found = [
        x[places],
        x[x[:, 0] > 0],
        x.gather(0, places[:, None].expand(-1, 40)),
        x.index_select(1, places[:20] % 40),
        x.nonzero()[:50],
    ]
    y = torch.zeros(1000, 40, device=DEVICE)
    y[torch.arange(500, device=DEVICE)] = 3.0
    y.masked_fill_(x > 1, -1)
    return [*found, y, torch.where(x > 0, x, y), x.tril()]


def integer_scatter():
    # Sums of integers do not depend on their order.
    places = torch.randint(0, 100, (100000,), device=DEVICE)
    into = torch.zeros(100, dtype=torch.int64, device=DEVICE)
    return [into.scatter_add_(0, places, places), into.index_add(0, places, places)]


def joining():
    parts = [random(11, n) for n in (3, 64, 1000)]
    return [
        torch.cat(parts, 1),
        torch.stack([parts[1], parts[1] + 1]),
        *torch.cat(parts, 1).split([500, 567], 1),
        parts[2].repeat(2, 3),
        parts[0].roll(1),
    ]


def random_numbers():
    torch.manual_seed(7)
    found = [
        torch.rand(10000, device=DEVICE),
        torch.randn(333, device=DEVICE),
        torch.randint(0, 99, (777,), device=DEVICE),
        torch.randperm(5000, device=DEVICE),
    ]
    x = torch.ones(4000, device=DEVICE)
    found += [
        torch.bernoulli(x * 0.3),
        torch.multinomial(x[:50], 20),
        torch.nn.functional.dropout(x, 0.4),
        torch.empty_like(x).exponential_(),
    ]
    return found


def generator_state_goes_and_comes_back():
    generator = torch.Generator(device=DEVICE).manual_seed(11)
    state = generator.get_state()
    first = torch.rand(100, generator=generator, device=DEVICE)
    generator.set_state(state)
    return bool((first == torch.rand(100, generator=generator, device=DEVICE)).all())


def neural():
    functional = torch.nn.functional
    x = random(8, 16, 32, 32)
    return [
        functional.layer_norm(x, (32, 32)),
        functional.group_norm(x, 4),
        functional.softmax(x, 1),
        functional.max_pool2d(x, 3, 2),
        functional.avg_pool2d(x, 2),
        functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
        functional.pad(x, (1, 2, 3, 4), mode="reflect"),
        functional.cross_entropy(x.flatten(1), torch.arange(8, device=DEVICE)),
        functional.embedding(torch.randint(0, 16, (9,), device=DEVICE), x[0, 0, :16]),
    ]


def many_tensors_at_once():
    tensors = [random(n + 1) for n in range(300)]
    return torch._foreach_add(torch._foreach_mul(tensors, 2.0), 1.0)


def copies_of_every_kind():
    x = torch.arange(100003, dtype=torch.float64)
    there = x.to(DEVICE)
    odd = there[1::3].cpu()
    twice = torch.empty_like(there)
    twice.copy_(there, non_blocking=True)
    twice[5:17].copy_(x[:12])
    half = there.half().cpu()
    return [there, odd, twice, half, there.view(torch.uint8)[3:1003]]


def single_numbers():
    x = random(10)
    same("item", x[3].item())
    same("tolist", x.tolist())
    same("equal", torch.equal(x, x.clone()))
    same("allclose", torch.allclose(x, x + 1e-9))
    return not x.isnan().any().item()


def large():
    x = torch.arange(1 << 28, dtype=torch.int32, device=DEVICE) if DEVICE == "cuda" else torch.arange(1 << 20, dtype=torch.int32)
    return [(x * 3 % 1000).sum(), x[-5:], x.view(-1, 1024)[:, 7].sum()]


attempts(
    elementwise,
    every_type,
    complex_numbers,
    broadcasting_and_views,
    reductions,
    scans,
    sorting,
    long_sorts,
    indexing,
    integer_scatter,
    joining,
    random_numbers,
    generator_state_goes_and_comes_back,
    neural,
    many_tensors_at_once,
    copies_of_every_kind,
    single_numbers,
    large,
)
