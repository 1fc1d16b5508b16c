"""GPT-2, greedy decoding: the same tokens, and the logits that chose them to the bit."""

import torch
from device import DEVICE
from say import attempts, same
from workloads import models


def decoding():
    is_tiny = DEVICE == "cpu"
    model, vocabulary = models.gpt2(is_tiny)
    model.to(DEVICE).eval()
    prompt = torch.randint(1, vocabulary, (1, 16), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    tokens = models.generate(model, prompt, 8 if is_tiny else 64)
    same("tokens", tokens[0].tolist())
    with torch.no_grad():
        return model(tokens).logits


attempts(decoding)
