"""Models for inspection, and a typical training loop: `inspected.py CASE BATCH` prints the loop's peak."""

import json
import sys

import torch
from torch import nn
from torch.nn import functional as F


class TiedTransformer(nn.Module):
    """A language model whose embedding is also its head, with a mask as a buffer."""

    def __init__(self, vocabulary=2000, width=128, context=64):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.full((context, context), float("-inf")).triu(1))

    def forward(self, ids):
        return self.head(self.blocks(self.embedding(ids), mask=self.mask))


class Convolutions(nn.Module):
    """Uses two entries of a dict with three."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 8, 3), nn.Flatten())
        self.last = nn.Linear(8 * 28 * 28, 10)

    def forward(self, image, scale):
        return self.last(self.layers(image * scale[:, None, None, None]))


def next_token(logits, ids):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def against_label(logits, batch):
    return F.cross_entropy(logits, batch["label"])


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=1000, n_positions=128))


def ids_of(batch):
    return torch.zeros(batch, 64, dtype=torch.long)


def images_of(batch):
    return {
        "image": torch.zeros(batch, 3, 32, 32),
        "scale": torch.ones(batch),
        "label": torch.zeros(batch, dtype=torch.long),
    }


def texts_of(batch):
    return {"input_ids": ids_of(batch), "attention_mask": torch.ones_like(ids_of(batch)), "labels": ids_of(batch)}


# By name: (model, batch of a size, options of `memlab.inspect`).
CASES = {
    "tied": (TiedTransformer, ids_of, {"loss": next_token, "amp": torch.bfloat16}),
    "accumulated": (TiedTransformer, ids_of, {"loss": next_token, "optimizer": "sgd", "accumulate": 3}),
    "scaled": (TiedTransformer, ids_of, {"loss": next_token, "amp": torch.float16}),
    "dict": (Convolutions, images_of, {"loss": against_label}),
    "gpt2": (gpt2, texts_of, {}),
    "inference": (TiedTransformer, ids_of, {"optimizer": None}),
}


def called(model, batch):
    if isinstance(model, Convolutions):
        return model(batch["image"], batch["scale"])
    return model(**batch) if isinstance(batch, dict) else model(batch)


def moved(batch):
    return {name: value.cuda() for name, value in batch.items()} if isinstance(batch, dict) else batch.cuda()


def train(case, size, steps):
    make, batch_of, options = CASES[case]
    model, loss_of, amp = make().cuda(), options.get("loss"), options.get("amp")
    if options.get("optimizer", "") is None:
        model.eval()
        with torch.no_grad():
            for _ in range(steps):
                batch = moved(batch_of(size))
                outputs = called(model, batch)
        return
    of_optimizer = torch.optim.SGD if options.get("optimizer") == "sgd" else torch.optim.AdamW
    optimizer, scaler = of_optimizer(model.parameters()), torch.amp.GradScaler("cuda", enabled=amp is torch.float16)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(options.get("accumulate", 1)):
            batch = moved(batch_of(size))
            with torch.autocast("cuda", amp, enabled=amp is not None):
                outputs = called(model, batch)
                loss = (loss_of(outputs, batch) if loss_of else outputs.loss) / options.get("accumulate", 1)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), steps=12)
    print(json.dumps([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]))
