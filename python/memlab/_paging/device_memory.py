"""How much memory a device has for weights."""

from __future__ import annotations

import torch

# Left to forwards beyond the measured activations, if weights can do without: workspaces, fragmentation.
RESERVE = 256 << 20


def capacity(device: torch.device, activations: int, *, with_reserve: bool = True) -> int:
    """Bytes that weights may take on the device, beside the activations that a forward was seen to need.

    Args:
        activations: Bytes.
        with_reserve: Whether later forwards may need more than that one.
    """
    if device.type == "cpu":
        with open("/proc/meminfo") as lines:
            available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
        return available * 3 // 4
    reserve = activations // 10 + RESERVE if with_reserve else 0
    return max(free_memory(device) - activations - reserve, 0)


def free_memory(device: torch.device) -> int:
    """Bytes that PyTorch can still allocate on a GPU: free on the card or cached, within the process's share of the card.

    The share is what ``torch.cuda.set_per_process_memory_fraction`` has set.
    """
    free, total = torch.cuda.mem_get_info(device)
    reserved, allocated = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    if hasattr(torch.cuda, "get_per_process_memory_fraction"):  # From PyTorch 2.8 on.
        share = int(total * torch.cuda.get_per_process_memory_fraction(device))
        free = min(free, max(share - reserved, 0))
    return free + reserved - allocated
