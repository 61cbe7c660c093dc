"""The best case of a leading prefix: the first blocks stay on the GPU, the others pass through two slots.

It uses pinned memory, one copy per block and events, and copies the next forward's first blocks while this one ends: the
same as memlab except for the choice of residents. The difference between the two is the gain from that choice.
"""

import torch
from networks import weight_bytes


def align(size):
    return -(-size // 512) * 512


class Block:
    """A block's tensors: contiguous in a pinned buffer, and their views in each of the two slots."""

    def __init__(self, module, slots):
        self.tensors = list({id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}.values())
        self.host = torch.empty(sum(align(tensor.nbytes) for tensor in self.tensors), dtype=torch.uint8, pin_memory=True)
        self.views: list[list[torch.Tensor]] = [[] for _ in slots]
        start = 0
        for tensor in self.tensors:
            self.view(self.host, start, tensor).copy_(tensor.data)
            for views, slot in zip(self.views, slots, strict=True):
                views.append(self.view(slot, start, tensor))
            start += align(tensor.nbytes)
        self.use(0)

    @staticmethod
    def view(buffer, start, tensor):
        return buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    def use(self, slot):
        for tensor, view in zip(self.tensors, self.views[slot], strict=True):
            tensor.data = view


class Stream:
    """Copies blocks in turn, each into the slot that is free first."""

    def __init__(self, modules, device):
        size = max(sum(align(t.nbytes) for t in (*module.parameters(), *module.buffers())) for module in modules)
        self.slots = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2)]
        self.blocks = [Block(module, self.slots) for module in modules]
        self.copying = torch.cuda.Stream(device)
        self.ready, self.free = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))
        self.copied = self.run = 0
        for module in modules:
            module.register_forward_pre_hook(self.before)
            module.register_forward_hook(self.after)
        self.copying.wait_stream(torch.cuda.current_stream(device))
        for _ in range(2):
            self.copy()

    def copy(self):
        block, slot = self.blocks[self.copied % len(self.blocks)], self.copied % 2
        with torch.cuda.stream(self.copying):
            if self.copied >= 2:
                self.copying.wait_event(self.free[slot])
            self.slots[slot][: len(block.host)].copy_(block.host, non_blocking=True)
            self.ready[slot].record(self.copying)
        self.copied += 1

    def before(self, module, args):
        slot = self.run % 2
        torch.cuda.current_stream().wait_event(self.ready[slot])
        self.blocks[self.run % len(self.blocks)].use(slot)

    def after(self, module, args, output):
        self.free[self.run % 2].record(torch.cuda.current_stream())
        self.run += 1
        self.copy()


def page(model, blocks, device, budget):
    """Pages the model in place. `budget`: bytes for the residents and both slots."""
    sizes = [weight_bytes(block) for block in blocks]
    left = budget - (weight_bytes(model) - sum(sizes)) - 2 * max(sizes)
    leading = 0
    while leading < len(blocks) and left >= sizes[leading]:
        left -= sizes[leading]
        leading += 1
    streamed = blocks[leading:]
    within = {id(tensor) for block in streamed for tensor in (*block.parameters(), *block.buffers())}
    for tensor in (*model.parameters(), *model.buffers()):
        if id(tensor) not in within:
            tensor.data = tensor.data.to(device)
    # The model keeps the stream alive.
    model.streamed = Stream(streamed, device) if streamed else None
    return leading
