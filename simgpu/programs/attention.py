"""Runs scaled dot product attention with every kernel that torch has for it."""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

CASES = [
    (SDPBackend.FLASH_ATTENTION, torch.bfloat16),
    (SDPBackend.EFFICIENT_ATTENTION, torch.float32),
    (SDPBackend.CUDNN_ATTENTION, torch.bfloat16),
    (SDPBackend.MATH, torch.float32),
]

for backend, dtype in CASES:
    q, k, v = (torch.randn(2, 8, 128, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out.float().sum().backward()
    assert out.shape == q.shape and q.grad.shape == q.shape
    print(backend, torch.cuda.max_memory_allocated())

# AND a small transformer with the kernel that torch chooses, under autocast
layer = torch.nn.TransformerEncoderLayer(128, 4, batch_first=True).cuda()
optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
for _ in range(3):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = layer(torch.randn(4, 64, 128, device="cuda")).float().pow(2).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
print("ok")
