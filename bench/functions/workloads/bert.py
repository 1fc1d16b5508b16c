"""Question answering with BERT-large: 512 questions of 384 tokens, in batches of 16."""

import torch
from common import SEED, Workload, checksum
from torch import nn


class Bert(nn.Module):
    def __init__(self, layers, width, heads, words, length):
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(words, width), nn.Embedding(length, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        make = lambda: nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", 1e-12, batch_first=True)  # noqa: E731
        self.layers = nn.ModuleList(make() for _ in range(layers))
        self.head = nn.Linear(width, 2)

    def forward(self, tokens, kinds):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.words(tokens) + self.places(places) + self.kinds(kinds))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def make(is_tiny):
    return Bert(2, 32, 2, 100, 32) if is_tiny else Bert(24, 1024, 16, 30_522, 512)


def run(model, where, is_tiny):
    count, batch, length, words = (1, 2, 16, 100) if is_tiny else (32, 16, 384, 30_522)
    source = torch.Generator().manual_seed(SEED)
    spans = []
    for _ in range(count):
        tokens = torch.randint(words, (batch, length), generator=source).to(where)
        kinds = (torch.arange(length) >= length // 8).long().expand(batch, length).to(where)
        start, end = model(tokens, kinds).unbind(2)
        # The best span that ends after it begins, within thirty words.
        scores = start[:, :, None] + end[:, None, :]
        near = torch.ones(length, length, device=where).triu().tril(29).bool()
        spans.append(scores.masked_fill(~near, -1e9).flatten(1).max(1).values)
    return {"questions": count * batch, "mean": checksum(torch.cat(spans))}


handler = Workload("bert", make, run)
