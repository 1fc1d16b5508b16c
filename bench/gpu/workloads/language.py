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


def gpt2_decoding(where):
    model, vocabulary = models.gpt2(where.is_tiny)
    model.to(where.device).eval()
    prompt = tokens(where, 1, 16, vocabulary)
    last = []

    def step():
        last[:] = [models.generate(model, prompt, where.pick(64, 4)).cpu()]

    return Prepared(step, lambda: last[0][0].tolist())
