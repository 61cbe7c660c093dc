"""Trainings that are planned: `planned.py KIND --batch N`. At the end prints PyTorch's own peaks, as JSON."""

import argparse
import json

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, CONTEXT, WORDS = 256, 4, 128, 5000


class Block(nn.Module):
    def __init__(self, eager):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))
        self.eager = eager

    def forward(self, x):
        batch, length, _ = x.shape
        heads = self.qkv(self.before_attention(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = heads
        if self.eager:
            scores = query @ key.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
            mixed = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ value
        else:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    def __init__(self, eager=False, recompute=False):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(eager) for _ in range(4))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.recompute = recompute

    def forward(self, tokens):
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return functional.cross_entropy(self.head(x[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


class Residual(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.way = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outer),
        )
        same = inner == outer and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x):
        return functional.relu(self.way(x) + self.shortcut(x))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([Residual(3, 32, 1), Residual(32, 64, 2), Residual(64, 128, 2)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(128, 64, 2, 2), nn.ConvTranspose2d(64, 32, 2, 2)])
        self.last = nn.Conv2d(32, 3, 1)

    def forward(self, x):
        kept = []
        for part in self.down:
            x = part(x)
            kept.append(x)
        for part, skipped in zip(self.up, reversed(kept[:-1]), strict=True):
            x = part(x) + skipped
        return self.last(x)


def resnet():
    sizes = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)]
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        *(Residual(*size) for size in sizes),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 1000),
    )


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 200)
        self.lstm = nn.LSTM(200, 200, 2, batch_first=True)
        self.head = nn.Linear(200, WORDS)

    def forward(self, tokens):
        return self.head(self.lstm(self.words(tokens))[0])


def tokens(batch):
    return torch.randint(0, WORDS, (batch, CONTEXT), device="cuda")


def images(batch):
    return torch.randn(batch, 3, 64, 64, device="cuda")


def train(steps, model, loss, amp=None, optimizer=torch.optim.AdamW, accumulate=1):
    model = model.cuda()
    optimizer = optimizer(model.parameters(), lr=1e-3)
    for _ in range(steps):
        for _ in range(accumulate):
            with torch.autocast("cuda", dtype=amp, enabled=amp is not None):
                value = loss(model)
            value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def language(model, batch):
    return lambda model: model(tokens(batch))


def classes(model, batch):
    return lambda model: functional.cross_entropy(model(images(batch)), torch.zeros(batch, dtype=torch.long, device="cuda"))


def gan(steps, batch):
    maker = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 3 * 64 * 64)).cuda()
    judge = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 512), nn.ReLU(), nn.Linear(512, 1)).cuda()
    makers, judges = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
    for _ in range(steps):
        made = maker(torch.randn(batch, 64, device="cuda"))
        judges.zero_grad()
        (judge(made.detach()).mean() - judge(images(batch)).mean()).backward()
        judges.step()
        makers.zero_grad()
        (-judge(made).mean()).backward()
        makers.step()


def hugging_face(steps, batch, kind):
    import transformers

    if kind == "gpt2":
        config = transformers.GPT2Config(n_layer=3, n_embd=WIDTH, n_head=HEADS, vocab_size=WORDS, n_positions=CONTEXT)
        model = transformers.GPT2LMHeadModel(config)
    elif kind == "llama":
        config = transformers.LlamaConfig(
            num_hidden_layers=3, hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_attention_heads=HEADS, vocab_size=WORDS
        )
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.ViTConfig(
            num_hidden_layers=3, hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_attention_heads=HEADS, image_size=64,
            patch_size=8,
        )  # fmt: skip
        model = transformers.ViTForImageClassification(config)
        labels = torch.zeros(batch, dtype=torch.long, device="cuda")
        return train(steps, model, lambda model: model(pixel_values=images(batch), labels=labels).loss, torch.bfloat16)

    def loss(model):
        words = tokens(batch)
        return model(input_ids=words, labels=words).loss

    return train(steps, model, loss, torch.bfloat16 if kind == "llama" else None)


def trainer(steps, batch):
    import tempfile

    import transformers

    config = transformers.GPT2Config(n_layer=3, n_embd=WIDTH, n_head=HEADS, vocab_size=WORDS, n_positions=CONTEXT)
    words = torch.randint(0, WORDS, (batch * steps * 2, CONTEXT))
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, per_device_train_batch_size=batch, max_steps=steps, save_strategy="no", report_to=[], bf16=True,
            gradient_accumulation_steps=2, disable_tqdm=True,
        )  # fmt: skip
        data = [{"input_ids": row, "labels": row} for row in words]
        transformers.Trainer(transformers.GPT2LMHeadModel(config), arguments, train_dataset=data).train()


def run(kind, batch, steps):
    if kind.startswith("gpt"):
        model = GPT(eager="eager" in kind, recompute="recompute" in kind)
        train(steps, model, language(model, batch), torch.bfloat16 if "amp" in kind else None)
    elif kind == "accumulated":
        train(steps, GPT(), language(None, batch), accumulate=3, optimizer=torch.optim.SGD)
    elif kind == "resnet":
        train(steps, resnet(), classes(None, batch))
    elif kind == "unet":
        train(steps, UNet(), lambda model: functional.mse_loss(model(images(batch)), images(batch)), torch.float16)
    elif kind == "lstm":
        train(
            steps,
            LSTM(),
            lambda model: functional.cross_entropy(model(tokens(batch)).flatten(0, 1), tokens(batch).flatten()),
        )
    elif kind == "gan":
        gan(steps, batch)
    elif kind == "trainer":
        trainer(steps, batch)
    else:
        hugging_face(steps, batch, kind.removeprefix("hf-"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--context", type=int, default=CONTEXT)
    options = parser.parse_args()
    globals().update(WIDTH=options.width, CONTEXT=options.context)
    run(options.kind, options.batch, options.steps)
    print(json.dumps([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]))


if __name__ == "__main__":
    main()
