"""Allocates, frees and keeps memory under any settings of the allocator. Prints PyTorch's counts
and the bytes of the tensors that it keeps."""

import torch

kept = [torch.empty(size * 1024, device="cuda") for size in (1, 3000, 20, 9000, 5)]
kept.pop(1)
pinned = torch.empty(1000).pin_memory()
if torch.cuda.get_allocator_backend() == "native":
    torch.cuda.empty_cache()
kept.append(torch.empty(4096, device="cuda"))
requested = sum(tensor.untyped_storage().nbytes() for tensor in kept)
print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), requested)
