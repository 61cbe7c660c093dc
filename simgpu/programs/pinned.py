"""Pinned host memory: torch's caching host allocator, registration, and the data loader's pinning thread."""

import torch

# GIVEN pinned and pageable memory
plain = torch.arange(1 << 16, dtype=torch.float32)
pinned = plain.pin_memory()
assert pinned.is_pinned() and not plain.is_pinned()

# WHEN it is copied asynchronously
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    there = pinned.to("cuda", non_blocking=True)
    back = torch.empty_like(plain, pin_memory=True)
    back.copy_(there, non_blocking=True)
stream.synchronize()
# THEN the data arrives
assert torch.equal(back, plain)

# WHEN the program registers its own memory, THEN it counts as pinned until it is unregistered
own = torch.empty(1 << 16)
runtime = torch.cuda.cudart()
assert int(runtime.cudaHostRegister(own.data_ptr(), own.numel() * 4, 0)) == 0
assert own.is_pinned()
assert int(runtime.cudaHostUnregister(own.data_ptr())) == 0
assert not own.is_pinned()

# AND the data loader pins batches in its own thread
dataset = torch.utils.data.TensorDataset(torch.randn(64, 8))
for (batch,) in torch.utils.data.DataLoader(dataset, batch_size=16, pin_memory=True, num_workers=1):
    assert batch.is_pinned()
    assert torch.equal(batch.cuda(non_blocking=True).cpu(), batch)

# AND events keep time
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record()
end.record()
end.synchronize()
assert 0 <= start.elapsed_time(end) < 1000
print("ok")
