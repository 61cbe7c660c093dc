"""Trainings that memlab advises on: `advised.py KIND`. They follow advice in `ADVICE`, as `memlab advise --json` has it,
by running its code in the place where a reader would paste it. At the end each prints PyTorch's own peaks, as JSON."""

import json
import os
import sys

import planned
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

STEPS = 4


class GPT(nn.Module):
    """Blocks of `planned`, and a head that can be called by itself."""

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


def llama():
    import peft
    import transformers

    config = transformers.LlamaConfig(
        num_hidden_layers=6, hidden_size=256, intermediate_size=704, num_attention_heads=4, vocab_size=2000
    )
    lora = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"])
    return peft.get_peft_model(transformers.LlamaForCausalLM(config), lora)


def tokens(rows, words=2000, length=planned.CONTEXT):
    return torch.randint(words, (rows, length), device="cuda")


def next_words(model, inputs):
    return F.cross_entropy(model(inputs).flatten(0, 1), inputs.flatten())


def classes(model, inputs):
    return F.cross_entropy(model(inputs), torch.zeros(len(inputs), dtype=torch.long, device="cuda"))


def noise(model, inputs):
    return F.mse_loss(model(inputs), inputs)


def of_hugging_face(model, inputs):
    return model(input_ids=inputs, labels=inputs).loss


def hidden_of(model, inputs):
    """What a model's head is given."""
    if isinstance(model, GPT):
        return model.hidden(inputs)
    return model.base_model.model.model(input_ids=inputs).last_hidden_state


def images(rows):
    return torch.randn(rows, 3, 64, 64, device="cuda")


def grown(step):
    """Batches of other lengths, each longer than the last."""
    return tokens(24, length=32 + 24 * step)


KINDS = {
    "gpt": (GPT, lambda _: tokens(32), next_words),
    "gpt-eager": (lambda: GPT(eager=True), lambda _: tokens(32), next_words),
    "resnet": (Images, lambda _: images(32), classes),
    "unet": (planned.UNet, lambda _: images(32), noise),
    "llama-lora": (llama, lambda _: tokens(32), of_hugging_face),
    "words": (lambda: GPT(1, 30_000), lambda _: tokens(24, 30_000), next_words),
    "gradients": (lambda: GPT(12), lambda _: tokens(4), next_words),
    "optimizer": (lambda: GPT(24), lambda _: tokens(1), next_words),
    "leak": (GPT, lambda _: tokens(8), next_words),
    "lengths": (GPT, grown, next_words),
}


def train(kind, advice):
    model_of, inputs_of, loss_fn = KINDS[kind]
    how, what = advice.get("how", ""), advice.get("kind")
    torch.manual_seed(0)
    model = model_of().to("cuda")
    if what == "checkpoint":
        exec(how, {"model": model})
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
    if what in ("fused_optimizer", "offload_optimizer_state"):
        scope = {"model": model, "optimizer": optimizer, "torch": torch}
        exec(how, scope)
        optimizer = scope["optimizer"]
    kept = []
    for step in range(STEPS):
        inputs = inputs_of(step)
        if what == "offload_activations":
            import memlab

            scope = {"memlab": memlab, "loss_fn": loss_fn, "model": model, "inputs": inputs}
            exec(how, scope)
            loss = scope["loss"]
        elif what == "chunked_loss":
            scope = {"F": F, "checkpoint": checkpoint, "model": model, "targets": inputs.flatten()}
            scope["hidden"] = hidden_of(model, inputs).flatten(0, 1)
            exec(how, scope)
            del scope["hidden"]
            loss = scope["loss"]
        else:
            loss = loss_fn(model, inputs)
        if kind == "gradients" and what != "gradients":
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if what == "gradients":
            exec(how, {"optimizer": optimizer})
        elif kind != "gradients":
            optimizer.zero_grad()
        if kind == "leak":
            kept.append(model(inputs))


def infer():
    """Evaluation alone: nothing is kept that need not be."""
    model = GPT().to("cuda").eval()
    with torch.no_grad():
        for _ in range(STEPS):
            model(tokens(4)).argmax(-1).sum().item()


if __name__ == "__main__":
    kind, advice = sys.argv[1], json.loads(os.environ.get("ADVICE", "{}"))
    if kind == "inference":
        infer()
    else:
        train(kind, advice)
    print(json.dumps({"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}))
