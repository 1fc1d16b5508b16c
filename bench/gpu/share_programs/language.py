"""BERT-base and a decoder of GPT-2's size, in plain PyTorch, with random weights."""

import math

import torch
from torch import nn

LAYERS, WIDTH, HEADS = 12, 768, 12
HEAD_WIDTH = WIDTH // HEADS


class Parts(nn.Module):
    """What a layer of both networks has."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def feed(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


class EncoderLayer(Parts):
    """Attention is written out: the fused ones add gradients up in an order that varies."""

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, HEADS, HEAD_WIDTH).permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(HEAD_WIDTH), dim=-1)
        x = self.norm1(x + self.out((weights @ v).transpose(1, 2).reshape(rows, length, WIDTH)))
        return self.norm2(x + self.feed(x))


class Bert(nn.Module):
    """BERT-base with a classifier of two classes. It has no dropout, so that its results depend on nothing random."""

    VOCABULARY, POSITIONS = 30522, 512

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(self.VOCABULARY, WIDTH), nn.Embedding(self.POSITIONS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(LAYERS))
        self.pool, self.classes = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, tokens):
        x = self.norm(self.words(tokens) + self.places.weight[: tokens.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return self.classes(torch.tanh(self.pool(x[:, 0])))


class DecoderLayer(Parts):
    def forward(self, x, keys, values, place, is_later):
        """One token of each row. `keys` and `values` are this layer's cache, in which `place` is written."""
        rows = x.shape[0]
        q, k, v = self.qkv(self.norm1(x)).view(rows, 3, HEADS, 1, HEAD_WIDTH).unbind(1)
        keys.index_copy_(2, place, k)
        values.index_copy_(2, place, v)
        scores = (q @ keys.transpose(-2, -1) / math.sqrt(HEAD_WIDTH)).masked_fill(is_later, float("-inf"))
        x = x + self.out((torch.softmax(scores, dim=-1) @ values).reshape(rows, WIDTH))
        return x + self.feed(self.norm2(x))


class Decoder(nn.Module):
    """GPT-2 of the smallest size, one token after another. All shapes are fixed, so that a step can be a CUDA graph."""

    VOCABULARY = 50257

    def __init__(self, rows, positions, device, dtype):
        super().__init__()
        self.words, self.places = nn.Embedding(self.VOCABULARY, WIDTH), nn.Embedding(positions, WIDTH)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.to(device=device, dtype=dtype)
        shape = (LAYERS, rows, HEADS, positions, HEAD_WIDTH)
        # Random, as if a prompt had been read.
        self.keys, self.values = (torch.randn(shape, device=device, dtype=dtype) for _ in range(2))
        self.numbers = torch.arange(positions, device=device)
        self.token = torch.zeros(rows, dtype=torch.int64, device=device)
        self.place = torch.zeros(1, dtype=torch.int64, device=device)

    def begin(self, place):
        self.token.fill_(1)
        self.place.fill_(place)

    def step(self):
        """The next token of each row, into `token`; returns what it was chosen by."""
        x = self.words(self.token) + self.places(self.place)
        is_later = self.numbers > self.place
        for at, layer in enumerate(self.layers):
            x = layer(x, self.keys[at], self.values[at], self.place, is_later)
        scores = self.norm(x) @ self.words.weight.t()
        self.token.copy_(scores.argmax(-1))
        self.place.add_(1)
        return scores
