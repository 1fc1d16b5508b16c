"""BERT-base, five training steps with dropout: losses and parameters, to the bit."""

import deterministic
import torch
from device import DEVICE
from say import attempts, bits
from workloads import models


def training():
    model, vocabulary = models.bert_classifier(is_tiny=DEVICE == "cpu")
    model.to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randint(1, vocabulary, (8, 128), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    labels = torch.arange(8, device=DEVICE) % 2
    torch.manual_seed(2)

    def body():
        return deterministic.train(model, (x, labels), lambda m, x, y: m(x, labels=y).loss, optimizer)

    losses, state = deterministic.run(body)
    bits("losses", *losses)
    bits("state", *state)


attempts(training)
