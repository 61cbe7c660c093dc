"""A small 3D U-Net with mixed precision: unet3d.py BATCH. Prints the peaks of allocated and reserved bytes."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

BATCH = int(sys.argv[1])


def convolution(inputs, outputs):
    return nn.Sequential(nn.Conv3d(inputs, outputs, 3, padding=1), nn.InstanceNorm3d(outputs), nn.LeakyReLU())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = convolution(1, 16), convolution(16, 32), convolution(32, 64)
        self.up_b, self.d = nn.ConvTranspose3d(64, 32, 2, 2), convolution(64, 32)
        self.up_a, self.e = nn.ConvTranspose3d(32, 16, 2, 2), convolution(32, 16)
        self.out = nn.Conv3d(16, 3, 1)

    def forward(self, x):
        a = self.a(x)
        b = self.b(F.max_pool3d(a, 2))
        y = self.c(F.max_pool3d(b, 2))
        y = self.d(torch.cat([self.up_b(y), b], 1))
        return self.out(self.e(torch.cat([self.up_a(y), a], 1)))


model = UNet().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.99, nesterov=True)
for _step in range(6):
    with torch.autocast("cuda", torch.float16):
        images = torch.randn(BATCH, 1, 64, 64, 64, device="cuda")
        loss = F.cross_entropy(model(images), torch.randint(0, 3, (BATCH, 64, 64, 64), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
stats = torch.cuda.memory_stats()
print(stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"])
