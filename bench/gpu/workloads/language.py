"""BERT-base inference and training, GPT-2 decoding."""

import torch

from . import models
from .workload import Prepared


def tokens(where, rows, columns, vocabulary):
    generator = torch.Generator().manual_seed(models.SEED)
    return torch.randint(1, vocabulary, (rows, columns), generator=generator).to(where.device)


def bert_inference(where):
    model, vocabulary = models.bert(where.is_tiny)
    model.to(where.device).eval()
    x = tokens(where, 1, where.pick(128, 8), vocabulary)
    last = []

    def step():
        with torch.no_grad():
            last[:] = [model(x).pooler_output]

    return Prepared(step, lambda: [last[0].double().norm().item()])


def bert_training(where, batch=8):
    model, vocabulary = models.bert_classifier(where.is_tiny)
    model.to(where.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    rows = where.pick(batch, 2)
    x = tokens(where, rows, where.pick(128, 8), vocabulary)
    labels = torch.arange(rows, device=where.device) % 2
    last = []

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x, labels=labels).loss
        loss.backward()
        optimizer.step()
        last[:] = [loss.detach()]

    return Prepared(step, lambda: [last[0].item()])


def bert_training_32(where):
    return bert_training(where, 32)


def encoder_training(where):
    """A transformer encoder of BERT-base's size in bf16 autocast, with dropout: kernels that are short beside their number."""
    models.seed()
    width, heads, depth = where.pick((768, 12, 12), (32, 2, 2))
    layer = torch.nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, activation="gelu", batch_first=True)
    model = torch.nn.TransformerEncoder(layer, depth, enable_nested_tensor=False).to(where.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(models.SEED)
    x, target = (
        torch.randn(where.pick(16, 2), where.pick(512, 8), width, generator=generator).to(where.device) for _ in range(2)
    )
    last = []

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(where.device, dtype=torch.bfloat16):
            loss = torch.nn.functional.mse_loss(model(x).float(), target)
        loss.backward()
        optimizer.step()
        last[:] = [loss.detach()]

    return Prepared(step, lambda: [last[0].item()])


def gpt2_decoding(where):
    model, vocabulary = models.gpt2(where.is_tiny)
    model.to(where.device).eval()
    prompt = tokens(where, 1, 16, vocabulary)
    last = []

    def step():
        last[:] = [models.generate(model, prompt, where.pick(64, 4)).cpu()]

    return Prepared(step, lambda: last[0][0].tolist())
