"""Runs an AOTInductor package: alone, or in a model that calls it.

    packaged.py make FOLDER                     makes FOLDER/net.pt2
    packaged.py run FOLDER OUT.json [LIBRARY]   runs it, after loading LIBRARY

OUT: {"allocated": the live bytes at the end, "weights": those of the weights, which the package allocates from the driver}.
"""

import ctypes
import json
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

case, folder = sys.argv[1:3]
SIZE, BATCH = 32, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(256)
        self.up = nn.Linear(256, 1024)
        self.down = nn.Linear(1024, 256)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.project = nn.Linear(16 * SIZE, 256)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(256, 1000)

    def forward(self, x):
        x = F.relu(self.stem(x)).permute(0, 2, 1, 3).flatten(2)
        x = self.project(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x).softmax(-1)


class Served(nn.Module):
    """A model whose encoder is a package and not an nn.Module."""

    def __init__(self, package):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1000))
        self.inner = Caller(package)

    def forward(self, x):
        return self.inner(x) * self.scale


class Caller(nn.Module):
    def __init__(self, package):
        super().__init__()
        self.package = package

    def forward(self, x):
        return self.package(x)


for library in sys.argv[4:]:
    ctypes.CDLL(library)
images = torch.ones(BATCH, 3, SIZE, SIZE, device="cuda")
if case == "make":
    with torch.no_grad():
        exported = torch.export.export(Net().cuda().eval(), (images,))
        torch._inductor.aoti_compile_and_package(exported, package_path=f"{folder}/net.pt2")
else:
    package = torch._inductor.aoti_load_package(f"{folder}/net.pt2")
    with torch.no_grad():
        held = package(images), Served(package).cuda()(images)
    torch.cuda.synchronize()
    weights = sum(weight.nbytes for weight in Net().parameters())
    with open(sys.argv[3], "w") as file:
        json.dump({"allocated": torch.cuda.memory_allocated(), "weights": weights}, file)
