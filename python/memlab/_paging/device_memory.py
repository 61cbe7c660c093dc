"""Free device memory for weights."""

from __future__ import annotations

import torch

# Reserved for forwards beyond the measured activations, if weights can do without: workspaces, fragmentation.
RESERVE = 256 << 20


def capacity(device: torch.device, activations: int, *, with_reserve: bool = True) -> int:
    """Returns the bytes that weights may take on the device, in addition to the measured activations of a forward.

    Args:
        activations: Bytes.
        True if later forwards may need more than the measured one.
    """
    if device.type == "cpu":
        with open("/proc/meminfo") as lines:
            available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
        return available * 3 // 4
    reserve = activations // 10 + RESERVE if with_reserve else 0
    return max(free_memory(device) - activations - reserve, 0)


def free_memory(device: torch.device) -> int:
    """Returns the bytes that PyTorch can still allocate on a GPU: free or cached, within the process's share of the card.

    ``torch.cuda.set_per_process_memory_fraction`` sets that share.
    """
    free, total = torch.cuda.mem_get_info(device)
    reserved, allocated = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    if hasattr(torch.cuda, "get_per_process_memory_fraction"):  # From PyTorch 2.8 on.
        share = int(total * torch.cuda.get_per_process_memory_fraction(device))
        free = min(free, max(share - reserved, 0))
    return free + reserved - allocated
