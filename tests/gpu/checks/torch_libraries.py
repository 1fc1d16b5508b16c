"""cuFFT, cuSOLVER (and MAGMA where PyTorch prefers it), and cuSPARSE, through PyTorch."""

import torch
from device import DEVICE
from say import attempts, near, refused, same

torch.manual_seed(13)


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(DEVICE, dtype)


def fourier():
    fft = torch.fft
    x = random(6, 1000)
    z = torch.complex(random(128, 96), random(128, 96))
    return [
        fft.fft(x),
        fft.rfft(x),
        fft.irfft(fft.rfft(x), 1000),
        fft.fft2(z),
        fft.fftn(random(16, 18, 20)),
        fft.ifft(z, dim=0),
        fft.fft(random(4, 997, dtype=torch.float64)),
    ]


def fourier_plans_come_and_go():
    # More sizes than the plan cache holds.
    return [torch.fft.rfft(random(n)) for n in range(100, 160)]


def spectrogram():
    window = torch.hann_window(256, device=DEVICE)
    return torch.stft(random(2, 8000), 256, window=window, return_complex=True)


def positive(n, dtype=torch.float64):
    a = random(n, n, dtype=dtype)
    return a @ a.T + n * torch.eye(n, dtype=dtype, device=DEVICE)


def cholesky():
    a = positive(200)
    return [torch.linalg.cholesky(a), torch.cholesky_solve(random(200, 5, dtype=torch.float64), torch.linalg.cholesky(a))]


def factorisations():
    a = random(120, 120, dtype=torch.float64)
    factors, pivots = torch.linalg.lu_factor(a)
    q, r = torch.linalg.qr(a)
    return [factors, pivots, torch.linalg.solve(a, a[:, :3]), torch.linalg.inv(a), torch.linalg.det(a), q, r]


def batched_factorisations():
    a = torch.stack([positive(24) for _ in range(50)])
    return [torch.linalg.cholesky(a), torch.linalg.inv(a), torch.linalg.lu_factor(a).LU]


def eigenvalues():
    a = positive(150)
    values, vectors = torch.linalg.eigh(a)
    same("eigh-rebuilds", torch.allclose(vectors @ values.diag() @ vectors.T, a))
    return [values, vectors.abs()]


def singular_values():
    a = random(90, 60, dtype=torch.float64)
    u, s, v = torch.linalg.svd(a, full_matrices=False)
    same("svd-rebuilds", torch.allclose(u @ s.diag() @ v, a))
    for n in (0, 30, 59):
        near(f"singular-{n}", s[n].item(), 1e-9)
    near("lstsq", torch.linalg.lstsq(a, a[:, :1]).solution.norm().item(), 1e-9)


def general_eigenvalues():
    try:
        values = torch.linalg.eigvals(random(40, 40, dtype=torch.float64))
    except RuntimeError as error:
        if "MAGMA" not in str(error):
            raise
        return "this PyTorch has no MAGMA"
    near("eigvals", values.abs().sort().values[7].item(), 1e-9)


def a_singular_matrix():
    """The error is found on the GPU and told by the host."""
    refused("singular", lambda: torch.linalg.inv(torch.zeros(5, 5, device=DEVICE)), RuntimeError)


def sparse():
    dense = random(300, 200)
    dense[dense.abs() < 1.2] = 0
    b = random(200, 40)
    csr, coo = dense.to_sparse_csr(), dense.to_sparse_coo()
    same("entries", csr.values().numel())
    for name, product in {"csr": csr @ b, "coo": torch.sparse.mm(coo, b), "vector": (csr @ b[:, 0])}.items():
        near(f"sparse-{name}", product.double().norm().item(), 1e-5)
    return [csr.crow_indices(), csr.col_indices(), coo.coalesce().indices(), csr.to_dense()]


def sparse_products():
    dense = random(100, 100)
    dense[dense.abs() < 1.5] = 0
    a = dense.to_sparse_csr()
    near("sparse-sparse", (a @ a).to_dense().double().norm().item(), 1e-5)
    sampled = torch.sparse.sampled_addmm(a, random(100, 30), random(30, 100))
    near("sampled", sampled.values().double().norm().item(), 1e-4)


attempts(
    fourier,
    fourier_plans_come_and_go,
    spectrogram,
    cholesky,
    factorisations,
    batched_factorisations,
    eigenvalues,
    singular_values,
    general_eigenvalues,
    a_singular_matrix,
    sparse,
    sparse_products,
)
