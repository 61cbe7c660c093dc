"""Training programs for `memlab plan`: `planned.py KIND --batch N`. Prints PyTorch's own peaks at the end, as JSON."""

import argparse
import functools
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
    def __init__(self, eager=False, recompute=False, blocks=4):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(eager) for _ in range(blocks))
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


class SelfAttention(nn.Module):
    """Attention over the positions of an image."""

    def __init__(self, channels):
        super().__init__()
        self.before, self.heads = nn.GroupNorm(8, channels), nn.MultiheadAttention(channels, HEADS, batch_first=True)

    def forward(self, x):
        places = self.before(x).flatten(2).transpose(1, 2)
        return x + self.heads(places, places, places, need_weights=False)[0].transpose(1, 2).view_as(x)


class AtTime(nn.Module):
    """A residual block of a diffusion model, which takes the noise level as an input."""

    def __init__(self, inner, outer, times):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, inner), nn.SiLU(), nn.Conv2d(inner, outer, 3, padding=1))
        self.time = nn.Linear(times, outer)
        self.second = nn.Sequential(
            nn.GroupNorm(8, outer), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(outer, outer, 3, padding=1)
        )
        self.shortcut = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x, time):
        return self.shortcut(x) + self.second(self.first(x) + self.time(time)[:, :, None, None])


class Diffusion(nn.Module):
    """A U-Net with attention at low resolution, which predicts the noise in an image."""

    def __init__(self, widths=(32, 64, 128), times=128):
        super().__init__()
        self.times = nn.Sequential(nn.Embedding(1000, times), nn.Linear(times, times), nn.SiLU())
        self.first = nn.Conv2d(3, widths[0], 3, padding=1)
        pairs = list(zip((widths[0], *widths), widths, strict=False))
        self.down = nn.ModuleList(AtTime(inner, outer, times) for inner, outer in pairs)
        self.middle = SelfAttention(widths[-1])
        self.up = nn.ModuleList(AtTime(2 * outer, inner, times) for inner, outer in reversed(pairs))
        self.last = nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, x, times):
        time, x, kept = self.times(times), self.first(x), []
        for part in self.down:
            x = part(x, time)
            kept.append(x)
            x = functional.avg_pool2d(x, 2)
        x = self.middle(x)
        for part in self.up:
            x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = part(torch.cat([x, kept.pop()], dim=1), time)
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


def train(steps, model, loss, amp=None, optimizer=torch.optim.AdamW, accumulate=1, scaled=False):
    model = model.cuda()
    optimizer = optimizer([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=scaled)
    for _ in range(steps):
        for _ in range(accumulate):
            with torch.autocast("cuda", dtype=amp, enabled=amp is not None):
                value = loss(model)
            scaler.scale(value).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)


def language(model, batch):
    return lambda model: model(tokens(batch))


def classes(model, batch):
    return lambda model: functional.cross_entropy(model(images(batch)), torch.zeros(batch, dtype=torch.long, device="cuda"))


def noise(batch):
    def loss(model):
        true, noise = images(batch), torch.randn(batch, 3, 64, 64, device="cuda")
        times = torch.randint(0, 1000, (batch,), device="cuda")
        share = (times / 1000)[:, None, None, None]
        return functional.mse_loss(model(true * (1 - share) + noise * share, times), noise)

    return loss


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


def run(kind, batch, steps):
    if kind.startswith("gpt"):
        # Compile time grows with the number of blocks.
        model = GPT(eager="eager" in kind, recompute="recompute" in kind, blocks=1 if "compiled" in kind else 4)
        amp = torch.bfloat16 if "amp" in kind else torch.float16 if "scaled" in kind else None
        optimizer = functools.partial(torch.optim.AdamW, fused="fused" in kind or None)
        if "compiled" in kind:
            model = torch.compile(model)
        train(steps, model, language(model, batch), amp, optimizer, scaled="scaled" in kind)
    elif kind == "accumulated":
        train(steps, GPT(), language(None, batch), accumulate=3, optimizer=torch.optim.SGD)
    elif kind == "resnet":
        train(steps, resnet(), classes(None, batch))
    elif kind == "resnet-momentum":
        momentum = functools.partial(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=1e-4)
        train(steps, resnet(), classes(None, batch), torch.bfloat16, momentum)
    elif kind == "unet":
        train(steps, UNet(), lambda model: functional.mse_loss(model(images(batch)), images(batch)), torch.float16)
    elif kind == "diffusion":
        train(steps, Diffusion(), noise(batch))
    elif kind == "lstm":
        train(
            steps,
            LSTM(),
            lambda model: functional.cross_entropy(model(tokens(batch)).flatten(0, 1), tokens(batch).flatten()),
        )
    elif kind == "gan":
        gan(steps, batch)
    else:
        raise ValueError(f"no training is called {kind}")


def main(run):
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
    main(run)
