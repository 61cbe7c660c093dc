"""A GPT training with AdamW that records checksums of its memory at each step, for comparison with an undisturbed run.

    moved.py UNTIL [--steps N] [--count FILE] [--width W] [--layers L] [--batch B] [--graph] [--first MIB] [--ballast MIB]

Runs N steps, at least one, then more until the file UNTIL exists; FILE gets a byte for each. Prints `ready` once it
trains. Prints a list at the end with one entry per step: the loss, and a checksum of all parameters and optimizer states.
On the simulated GPU, where kernels do nothing, memory keeps its random initial bytes; on a real one everything is
deterministic.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("until", type=Path)
parser.add_argument("--steps", type=int, default=0)
parser.add_argument("--count", type=Path, default="/dev/null")
parser.add_argument("--width", type=int, default=192)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--graph", action="store_true", help="capture the step into a CUDA graph and replay it")
parser.add_argument("--first", type=int, default=0, help="MiB of a tensor that is allocated before all others and only held")
parser.add_argument("--ballast", type=int, default=0, help="MiB of tensors that are only held")
args = parser.parse_args()

torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
CONTEXT, VOCABULARY = 64, 512


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, tokens, width = x.shape
        query, key, value = self.qkv(self.norm1(x)).view(batch, tokens, 3, 8, -1).permute(2, 0, 3, 1, 4)
        weights = (query @ key.transpose(-1, -2) / width**0.5).softmax(-1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(self.norm2(x))


first = torch.empty(args.first << 20, dtype=torch.uint8, device="cuda")
layers = [Block(args.width) for _ in range(args.layers)]
head = nn.Linear(args.width, VOCABULARY)
model = nn.Sequential(nn.Linear(VOCABULARY, args.width), *layers, nn.LayerNorm(args.width), head).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=args.graph)
tokens = F.one_hot(torch.randint(VOCABULARY, (args.batch, CONTEXT + 1)), VOCABULARY).float()
inputs, targets = tokens[:, :-1].cuda(), tokens[:, 1:].cuda()
random = torch.Generator().manual_seed(1)
ballast = [torch.randn(1 << 20, generator=random).cuda() for _ in range(args.ballast // 4)]


def step():
    optimizer.zero_grad(set_to_none=not args.graph)
    logits = model(inputs)
    loss = -(logits.log_softmax(-1) * targets).sum(-1).mean()
    loss.backward()
    optimizer.step()
    return loss


def tensors():
    yield from model.parameters()
    for state in optimizer.state.values():
        yield from (value for value in state.values() if value.is_cuda)
    yield from ballast


def checksum():
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors():
        digest.update(tensor.detach().cpu().numpy().data)
    return digest.hexdigest()


for _ in range(3):
    step()
# The simulated GPU computes nothing, so fill memory with distinct bytes.
if "SIMGPU_CARDS" in __import__("os").environ:
    with torch.no_grad():
        for tensor in tensors():
            tensor.copy_(torch.rand(tensor.shape, generator=random))
run = step
if args.graph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()

    def run():
        graph.replay()
        return captured


print("ready", flush=True)
seen: list = []
with args.count.open("ab", buffering=0) as count:
    while len(seen) < max(args.steps, 1) or not args.until.exists():
        loss = run()
        seen.append([loss.item().hex(), checksum()])
        count.write(b".")
print(json.dumps(seen), flush=True)
sys.exit(0)
