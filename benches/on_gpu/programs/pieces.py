"""Micro-batches on a GPU: `pieces.py exact`, `memory`, `speed` or `pictures`. Prints JSON lines."""

import copy
import json
import statistics
import sys
import time
from itertools import pairwise
from typing import Any

import memlab
import torch
from planned import Block
from torch import nn
from torch.nn import functional

WORDS, WIDTH = 5000, 256


class Encoder(nn.Module):
    """A transformer, with dropout in training. Returns a vector per text, or the scores of each next word."""

    def __init__(self, depth=4, words=False):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*(Block(eager=False) for _ in range(depth)))
        self.head = nn.Linear(WIDTH, WORDS) if words else None

    def forward(self, tokens):
        hidden = self.blocks(self.words(tokens))
        return hidden.mean(1) if self.head is None else self.head(hidden).transpose(1, 2)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.lstm, self.last = nn.Embedding(WORDS, 64), nn.LSTM(64, 128, 2, batch_first=True), nn.Linear(128, 32)

    def forward(self, tokens):
        return self.last(self.lstm(self.words(tokens))[0][:, -1])


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        channels = [3, 32, 64, 128]
        layers = [
            layer
            for inner, outer in pairwise(channels)
            for layer in (nn.Conv2d(inner, outer, 3, 2, 1), nn.GroupNorm(8, outer), nn.ReLU())
        ]
        self.layers, self.last = nn.Sequential(*layers), nn.Linear(128, 32)

    def forward(self, images):
        return self.last(self.layers(images).mean((2, 3)))


def contrastive(outputs):
    first, second = outputs.chunk(2, 1)
    scores = functional.normalize(first, dim=-1) @ functional.normalize(second, dim=-1).T / 0.1
    return functional.cross_entropy(scores, torch.arange(len(outputs), device=outputs.device))


def tokens(count, length=128):
    return torch.randint(0, WORDS, (count, length), generator=torch.Generator().manual_seed(1))


def next_words(of):
    targets = of.roll(-1, 1)
    targets[: len(of) // 3] = -100
    return targets


CASES: dict[str, tuple[Any, ...]] = {
    "gpt, cross entropy": (lambda: Encoder(words=True), tokens(37), nn.CrossEntropyLoss(), next_words(tokens(37))),
    "encoder, contrastive": (Encoder, tokens(37), contrastive, None),
    "lstm, contrastive": (Recurrent, tokens(37), contrastive, None),
    "pictures, squares": (Pictures, torch.randn(37, 3, 64, 64), nn.MSELoss(), torch.randn(37, 32)),
    "pictures, contrastive": (Pictures, torch.randn(37, 3, 64, 64), contrastive, None),
}


def gradients(model):
    return torch.cat([parameter.grad.double().flatten() for parameter in model.parameters()])


def whole(model, inputs, loss_fn, targets):
    model.zero_grad()
    outputs = model(inputs.cuda())
    (loss_fn(outputs) if targets is None else loss_fn(outputs, targets.cuda())).backward()
    return gradients(model)


def exact():
    """Distances from the gradients in float64: of the whole batch, of its second run, and of micro-batches, in float32."""
    for name, (make, inputs, loss_fn, targets) in CASES.items():
        model = make().cuda().eval()
        if isinstance(model, Recurrent):
            model.train()  # cuDNN's recurrent layers have a backward in training only.
        wide = copy.deepcopy(model).double()
        wide_inputs = inputs.double() if inputs.is_floating_point() else inputs
        wide_targets = targets.double() if targets is not None and targets.is_floating_point() else targets
        truth = whole(wide, wide_inputs, loss_fn, wide_targets)
        runs = [whole(model, inputs, loss_fn, targets) for _ in range(2)]
        pieces = {}
        for size in (None, 16, 5, 1):
            model.zero_grad()
            memlab.accumulate(model, inputs, loss_fn, targets=targets, micro_batch=size)
            pieces[str(size)] = float((gradients(model) - truth).norm() / truth.norm())
        distances = [float((run - truth).norm() / truth.norm()) for run in runs]
        print(json.dumps({"case": name, "whole": distances, "pieces": pieces}), flush=True)


def memory():
    """Peak allocation with micro-batches that memlab chooses, relative to the permitted memory."""
    for way, loss_fn, targets in (("micro-batches", nn.MSELoss(), True), ("replay", contrastive, False)):
        for limit in ("4GiB", "auto"):
            model = Encoder(8).cuda()
            batch = tokens(4096 if limit == "4GiB" else 60_000)
            given = torch.zeros(len(batch), WIDTH) if targets else None
            torch.cuda.empty_cache()
            free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
            for step in range(2):
                if step == 1:
                    torch.cuda.reset_peak_memory_stats()
                memlab.accumulate(model, batch, loss_fn, targets=given, memory=limit)
                model.zero_grad()
            row = {"way": way, "limit": limit, "free": free, "allocated": torch.cuda.max_memory_allocated()}
            print(json.dumps(row | {"ooms": torch.cuda.memory_stats()["num_ooms"]}), flush=True)
            del model


def timed(step, rounds):
    """Median of seconds."""
    step()
    seconds = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def speed():
    """Seconds of a batch in micro-batches, alternately by memlab and by hand."""
    model, batch, size = Encoder(12).cuda(), tokens(1024, 512), 128
    targets = torch.zeros(len(batch), WIDTH)
    on_card, targets_on_card = batch.cuda(), targets.cuda()

    def by_hand():
        """Plain accumulation: one forward and backward of everything."""
        model.zero_grad()
        for part, goal in zip(on_card.split(size), targets_on_card.split(size), strict=True):
            with torch.autocast("cuda", torch.bfloat16):
                loss = functional.mse_loss(model(part), goal)
            (loss * (len(part) / len(on_card))).backward()

    def by_memlab(loss_fn, goals, inputs):
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            memlab.accumulate(model, inputs, loss_fn, targets=goals, micro_batch=size)

    ways = {
        "by hand": by_hand,
        "separable": lambda: by_memlab(nn.MSELoss(), targets_on_card, on_card),
        "separable, batch on the host": lambda: by_memlab(nn.MSELoss(), targets, batch),
        "coupled": lambda: by_memlab(contrastive, None, on_card),
        "coupled, batch on the host": lambda: by_memlab(contrastive, None, batch),
    }
    rounds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(5):
        for name, step in ways.items():
            rounds[name].append(timed(step, 2))
    print(json.dumps({name: statistics.median(seconds) for name, seconds in rounds.items()}))


def pictures():
    """Seconds of a batch of pictures, with many bytes relative to their computation: on the GPU, in host memory, and in
    pinned memory, by hand, by memlab, and by memlab from an iterable of micro-batches, alternately."""
    model, batch, size = Pictures().cuda(), torch.randn(2048, 3, 224, 224), 256
    places = {"on the GPU": batch.cuda(), "on the host": batch, "pinned": batch.pin_memory()}
    targets = torch.zeros(len(batch), 32, device="cuda")

    def by_hand(images):
        model.zero_grad()
        for part, goal in zip(images.split(size), targets.split(size), strict=True):
            loss = functional.mse_loss(model(part.cuda(non_blocking=True)), goal)
            (loss * (len(part) / len(batch))).backward()

    def by_memlab(images):
        model.zero_grad()
        memlab.accumulate(model, images, nn.MSELoss(), targets=targets, micro_batch=size)

    def from_iterable(images):
        model.zero_grad()
        pieces = zip(images.split(size), targets.split(size), strict=True)
        memlab.accumulate(model, pieces, nn.MSELoss(), micro_batch=size)

    ways = {"by hand": by_hand, "by memlab": by_memlab, "from an iterable": from_iterable}
    rounds: dict[str, list[float]] = {}
    for _ in range(5):
        for place, images in places.items():
            for name, way in ways.items():
                rounds.setdefault(f"{place}, {name}", []).append(timed(lambda way=way, images=images: way(images), 2))
    print(json.dumps({name: statistics.median(seconds) for name, seconds in rounds.items()}))


if __name__ == "__main__":
    {"exact": exact, "memory": memory, "speed": speed, "pictures": pictures}[sys.argv[1]]()
