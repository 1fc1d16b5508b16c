"""k-means: a million points of 16 dimensions, 16 clusters, Lloyd's iterations."""

import torch
from common import SEED, Workload


def run(_model, where, is_tiny):
    points_count, clusters, iterations = (2_000, 16, 5) if is_tiny else (1_000_000, 16, 100)
    source = torch.Generator().manual_seed(SEED)
    middles = torch.randn(clusters, 16, generator=source) * 4
    which = torch.randint(clusters, (points_count,), generator=source)
    points = (middles[which] + torch.randn(points_count, 16, generator=source)).to(where)
    centres = points[:clusters].clone()
    ones = torch.ones(points_count, device=where)
    for _ in range(iterations):
        # |p - c|^2 without |p|^2, which is the same for all centres. In one step: it has 350 MB, and the points are 64 MB.
        nearest = torch.addmm(centres.square().sum(1), points, centres.T, alpha=-2).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        counts = torch.zeros(clusters, device=where).index_add_(0, nearest, ones)
        centres = torch.where(counts[:, None] > 0, sums / counts[:, None].clamp(min=1), centres)
    inertia = centres[nearest].sub_(points).square_().sum(1).mean()
    return {"inertia": round(float(inertia), 2)}


handler = Workload("kmeans", None, run)
