"""Trains one of several models and records what PyTorch reports about its memory, at several moments and at the end.

    exact.py MODEL OUT.json

OUT: {"moments": [{unix_ns, allocated, reserved, peak}…] per device, "lines": bytes alive at the last moment by line,
"parameters"/"gradients"/"states": bytes by name}. Everything stays alive until the program ends.
"""

import json
import sys
import time

import recording
import torch
import torch.nn as nn
import torch.nn.functional as F

kind, out = sys.argv[1:]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.out = nn.Linear(64, 64)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(32, 64, 2, batch_first=True)
        self.head = nn.Linear(64, 8)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3)
        )
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


class TwoDevices(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 512)
        self.second = nn.Linear(512, 64)

    def to_devices(self):
        self.first.to("cuda:0")
        self.second.to("cuda:1")
        return self

    def forward(self, x):
        return self.second(self.first(x.to("cuda:0")).relu().to("cuda:1"))


def make(kind):
    """The model and a function that creates an input."""
    if kind == "mlp":
        model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 16))
        return model.cuda(), lambda: torch.randn(32, 128)
    if kind == "cnn":
        return Cnn().cuda(), lambda: torch.randn(8, 3, 32, 32)
    if kind == "lstm":
        return Recurrent().cuda(), lambda: torch.randn(4, 12, 32)
    if kind == "attention":
        return nn.Sequential(Attention(), Attention()).cuda(), lambda: torch.randn(4, 24, 64)
    if kind == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel

        model = GPT2LMHeadModel(GPT2Config(n_layer=3, n_head=4, n_embd=128, vocab_size=1000, n_positions=64))
        return model.cuda(), lambda: torch.randint(0, 1000, (4, 48))
    return TwoDevices().to_devices(), lambda: torch.randn(16, 64)  # "two_devices"


moments = []


def counters():
    return [torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count())]


def moment():
    """Records PyTorch's counts once they are stable: autograd's threads may still free memory."""
    before, now = None, 0
    while counters() != before:
        before = counters()
        time.sleep(0.003)
        now = time.time_ns()
        time.sleep(0.003)
    for device in range(torch.cuda.device_count()):
        moments.append(
            {
                "unix_ns": now,
                "device": device,
                "allocated": torch.cuda.memory_allocated(device),
                "reserved": torch.cuda.memory_reserved(device),
                "peak": torch.cuda.max_memory_allocated(device),
            }
        )


torch.cuda.memory._record_memory_history(stacks="python")
model, batch = make(kind)
optimizer = torch.optim.AdamW(model.parameters())
moment()
kept = []
for step in range(4):
    x = batch().cuda()
    moment()
    loss = model(x, labels=x).loss if kind == "gpt2" else model(x).square().mean()
    moment()
    optimizer.zero_grad()
    loss.backward()
    moment()
    optimizer.step()
    kept.append(loss.detach() + 1)
    moment()
    if step == 2:
        del x, loss
        torch.cuda.empty_cache()
        moment()


def users(frames):
    for frame in frames:
        if "site-packages" not in frame["filename"] and "/torch/" not in frame["filename"]:
            return f"{frame['filename']}:{frame['line']}"
    return "none"


snapshot = torch.cuda.memory._snapshot()
lines = {}
for segment in snapshot["segments"]:
    for block in segment["blocks"]:
        if block["state"] == "active_allocated":
            key = users(block["frames"])
            lines[key] = lines.get(key, 0) + block["size"]


def bytes_of(tensor):
    return -(-tensor.numel() * tensor.element_size() // 512) * 512


parameters = {name: bytes_of(p) for name, p in model.named_parameters()}
gradients = {name: bytes_of(p.grad) for name, p in model.named_parameters()}
states = {
    name: sum(bytes_of(value) for value in optimizer.state[p].values() if value.is_cuda)
    for name, p in model.named_parameters()
}
buffers = {name: bytes_of(b) for name, b in model.named_buffers() if b.is_cuda}
with open(out, "w") as file:
    json.dump(
        {
            "moments": moments,
            "lines": lines,
            "parameters": parameters,
            "gradients": gradients,
            "states": states,
            "buffers": buffers,
        },
        file,
    )
recording.until_sampled(*range(torch.cuda.device_count()))
