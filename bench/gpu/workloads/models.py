"""The networks that are measured and compared: built from their configurations with random weights, since nothing is fetched.

`is_tiny` makes them small enough for a processor: to try the harness, never to measure.
"""

import torch

SEED = 1234


def seed():
    torch.manual_seed(SEED)


def mlp(is_tiny=False):
    """16 layers of 64: kernels so small that only the cost of calls counts."""
    seed()
    depth, width = (3, 8) if is_tiny else (16, 64)
    layers = [layer for _ in range(depth) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers), width


def resnet(is_tiny=False):
    """ResNet-50 and the shape of one image."""
    import torchvision

    seed()
    if is_tiny:
        return torchvision.models.resnet18(weights=None, num_classes=10), (3, 32, 32)
    return torchvision.models.resnet50(weights=None), (3, 224, 224)


def bert_config(is_tiny):
    from transformers import BertConfig

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 500}
    return BertConfig(**(small if is_tiny else {}))


def bert(is_tiny=False):
    """BERT-base without a head, and the size of its vocabulary."""
    from transformers import BertModel

    seed()
    config = bert_config(is_tiny)
    return BertModel(config), config.vocab_size


def bert_classifier(is_tiny=False):
    """BERT-base that sorts texts into two classes, and the size of its vocabulary."""
    from transformers import BertForSequenceClassification

    seed()
    config = bert_config(is_tiny)
    return BertForSequenceClassification(config), config.vocab_size


def gpt2(is_tiny=False):
    """GPT-2 (124 million parameters) and the size of its vocabulary."""
    from transformers import GPT2Config, GPT2LMHeadModel

    seed()
    small = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 500, "bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(**(small if is_tiny else {}))
    return GPT2LMHeadModel(config), config.vocab_size


def generate(model, prompt, tokens):
    """Greedy decoding of exactly so many tokens. The library asks the GPU after each token whether that was the last one; this
    asks, too, but counts, because a driver that does nothing answers with whatever lies there."""
    left = iter(range(tokens))

    def goes_on(is_finished, *_, **__):
        bool(is_finished)
        return next(left, None) is not None

    model._has_unfinished_sequences = goes_on
    with torch.no_grad():
        found = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            do_sample=False,
            use_cache=True,
            pad_token_id=0,
        )
    assert found.shape[1] == prompt.shape[1] + tokens, f"{found.shape[1] - prompt.shape[1]} tokens instead of {tokens}"
    return found
