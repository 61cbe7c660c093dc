"""Trains models that memlab advises on: `advised.py KIND [--steps N] [--scale N]`. Each item of the list in `ADVICE` is a
run: a list of pieces of advice, in the form of `memlab advise --json`. Their code runs where a reader would paste it; an
empty list changes nothing. A run prints PyTorch's own peaks and the time of a step, as a line of JSON."""

import argparse
import gc
import json
import os
import re
import time

import planned
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

STEPS = 4
# Not measured.
WARM_UP = 4


class GPT(nn.Module):
    """Blocks of `planned`, and a separately callable head."""

    def __init__(self, blocks=6, words=2000, eager=False):
        super().__init__()
        self.words, self.places = nn.Embedding(words, planned.WIDTH), nn.Embedding(planned.CONTEXT, planned.WIDTH)
        self.blocks = nn.ModuleList(planned.Block(eager) for _ in range(blocks))
        self.norm = nn.LayerNorm(planned.WIDTH)
        self.head = nn.Linear(planned.WIDTH, words, bias=False)

    def hidden(self, tokens):
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, tokens):
        return self.head(self.hidden(tokens))


class Images(nn.Module):
    """A small residual network."""

    def __init__(self, blocks=8):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, 1, 1)
        self.blocks = nn.ModuleList(planned.Residual(32, 32, 1) for _ in range(blocks))
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class Attention(nn.Module):
    """Attention whose weights nobody reads."""

    def __init__(self, width=64):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, x):
        y = self.norm(x)
        return x + self.attention(y, y, y)[0]


class Stage(nn.Module):
    """Two convolutions, and a custom operation."""

    def __init__(self, inner, outer):
        super().__init__()
        self.first, self.norm = nn.Conv2d(inner, outer, 3, 1, 1), nn.BatchNorm2d(outer)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1)

    def forward(self, x):
        return F.gelu(self.second(F.gelu(self.norm(self.first(x)))))


class Stages(nn.Module):
    """Modules of modules, none of them in a list."""

    def __init__(self):
        super().__init__()
        self.encoder, self.middle, self.decoder = Stage(3, 32), Stage(32, 48), Stage(48, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.decoder(self.middle(self.encoder(x))).mean((2, 3)))


def llama():
    import peft
    import transformers

    config = transformers.LlamaConfig(
        num_hidden_layers=6, hidden_size=256, intermediate_size=704, num_attention_heads=4, vocab_size=2000
    )
    lora = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"])
    return peft.get_peft_model(transformers.LlamaForCausalLM(config), lora)


def resnet_50():
    import transformers

    return transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=10))


def tokens(rows, words=2000, length=planned.CONTEXT):
    return torch.randint(words, (int(rows), length), device="cuda")


def next_words(model, inputs):
    return F.cross_entropy(model(inputs).flatten(0, 1), inputs.flatten())


def next_words_of_micro_batches(model, inputs):
    return sum(next_words(model, micro_batch) for micro_batch in inputs.chunk(4))


def classes(model, inputs):
    return F.cross_entropy(model(inputs), torch.zeros(len(inputs), dtype=torch.long, device="cuda"))


def classes_of_hugging_face(model, inputs):
    return F.cross_entropy(model(inputs).logits, torch.zeros(len(inputs), dtype=torch.long, device="cuda"))


def noise(model, inputs):
    return F.mse_loss(model(inputs), inputs)


def of_hugging_face(model, inputs):
    return model(input_ids=inputs, labels=inputs).loss


def hidden_of(model, inputs):
    """Input of a model's head."""
    if isinstance(model, GPT):
        return model.hidden(inputs)
    return model.base_model.model.model(input_ids=inputs).last_hidden_state


def images(rows):
    return torch.randn(int(rows), 3, 64, 64, device="cuda")


def grown(step, scale):
    """Batches of increasing length."""
    return tokens(24 * scale, length=32 + 24 * (step % STEPS))


KINDS = {
    "gpt": (GPT, lambda _, scale: tokens(32 * scale), next_words),
    "micro-batches": (GPT, lambda _, scale: tokens(32 * scale), next_words_of_micro_batches),
    "gpt-eager": (lambda: GPT(eager=True), lambda _, scale: tokens(32 * scale), next_words),
    "resnet": (Images, lambda _, scale: images(32 * scale), classes),
    "resnet-50": (resnet_50, lambda _, scale: images(16 * scale), classes_of_hugging_face),
    "stages": (Stages, lambda _, scale: images(32 * scale), classes),
    "unet": (planned.UNet, lambda _, scale: images(32 * scale), noise),
    "llama-lora": (llama, lambda _, scale: tokens(32 * scale), of_hugging_face),
    "words": (lambda: GPT(1, 30_000), lambda _, scale: tokens(24 * scale, 30_000), next_words),
    "gradients": (lambda: GPT(12), lambda *_: tokens(4), next_words),
    "optimizer": (lambda: GPT(24), lambda *_: tokens(1), next_words),
    "leak": (GPT, lambda *_: tokens(8), next_words),
    "lengths": (GPT, grown, next_words),
    "attention": (
        lambda: nn.Sequential(*(Attention() for _ in range(4))),
        lambda _, scale: torch.randn(int(8 * scale), 384, 64, device="cuda"),
        noise,
    ),
}


def train(kind, advice, steps, scale):
    """Returns the milliseconds of a step after the first few, or None without such steps."""
    model_of, inputs_of, loss_fn = KINDS[kind]
    how = {piece["kind"]: piece["how"] for piece in advice}
    torch.manual_seed(0)
    model = model_of().to("cuda")
    hooks = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
    earlier = [set(registered) for registered in hooks]
    scope = {}
    for code in how.values():
        if not code.startswith("export "):
            exec(code, scope)
    for function in ("checkpoint_layers", "without_weights", "prepare"):
        if function in scope:
            scope[function](model)
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
    kept = []
    began = None
    for step in range(steps):
        if step == WARM_UP:
            torch.cuda.synchronize()
            began = time.perf_counter()
        inputs = inputs_of(step, scale)
        if "offload_activations" in how:
            loss = scope["offloaded"](loss_fn)(model, inputs)
        elif "chunked_loss" in how:
            head = model.get_submodule(re.search(r"the module (\S+);", how["chunked_loss"]).group(1))
            loss = scope["loss_in_pieces"](head, hidden_of(model, inputs).flatten(0, 1), inputs.flatten())
        else:
            loss = loss_fn(model, inputs)
        if kind == "gradients" and "gradients" not in how:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if kind != "gradients":
            optimizer.zero_grad()
        if kind == "leak":
            kept.append(model(inputs))
    for registered, kept_hooks in zip(hooks, earlier, strict=True):
        for hook in set(registered) - kept_hooks:
            del registered[hook]
    torch.cuda.synchronize()
    return began and 1000 * (time.perf_counter() - began) / (steps - WARM_UP)


def infer(steps):
    """Plain evaluation, which keeps nothing unnecessarily."""
    model = GPT().to("cuda").eval()
    with torch.no_grad():
        for _ in range(steps):
            model(tokens(4)).argmax(-1).sum().item()


def multiply_on_streams(steps):
    """Matrix products on separate streams, each with a workspace."""
    matrix = torch.ones(1024, 1024, device="cuda")
    streams = [torch.cuda.Stream() for _ in range(12)]
    for _ in range(steps):
        for stream in streams:
            with torch.cuda.stream(stream):
                matrix @ matrix
        torch.cuda.synchronize()


def run(arguments, advice):
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    milliseconds = None
    if arguments.kind == "inference":
        infer(arguments.steps)
    elif arguments.kind == "streams":
        multiply_on_streams(arguments.steps)
    else:
        milliseconds = train(arguments.kind, advice, arguments.steps, arguments.scale)
    peaks = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    print(json.dumps(peaks | {"milliseconds": milliseconds}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--scale", type=float, default=1, help="of the batch")
    arguments = parser.parse_args()
    for advice in json.loads(os.environ.get("ADVICE", "[[]]")):
        run(arguments, advice)
