"""Checks micro-batches on the CPU that a GPU computes. Copies are real on a simulated GPU too.

Prints for each kind of batch the number of micro-batches computed, copied ahead and wrong, and the bytes left in the GPU's
memory."""

import gc
import json

import memlab
import torch
from memlab import accumulation
from memlab._batches import piece_prefetch, replay, streamed, weighted
from torch import nn

BATCH, PIECE = 19, 4
IMAGES, LABELS = torch.randn(BATCH, 3, 40, 40), torch.randint(0, 5, (BATCH,))
KINDS = {
    "unpinned": (IMAGES, LABELS),
    "pinned": (IMAGES.pin_memory(), LABELS.pin_memory()),
    "channels last": (IMAGES.to(memory_format=torch.channels_last), LABELS),
    "every second row": (IMAGES.repeat_interleave(2, 0)[::2], LABELS),
    "nested": ({"x": [IMAGES], "half": torch.ones(3), "name": "pieces", "scale": 2.0}, (LABELS,)),
    "some on the GPU": ({"x": [IMAGES], "half": torch.ones(3, device="cuda")}, LABELS.cuda()),
    "on the GPU": (IMAGES.cuda(), LABELS.cuda()),
}
piece_prefetch._PART_BYTES = 2 * IMAGES[0].nbytes  # Splits each micro-batch into several parts.


class Model(nn.Module):
    """Records its inputs. With a graph, memory may be too small for a full micro-batch."""

    def __init__(self, room):
        super().__init__()
        self.last, self.room, self.seen = nn.Linear(3, 5), room, []

    def forward(self, x, half=None, name=None, scale=1.0):
        x = x[0] if isinstance(x, list) else x
        if torch.is_grad_enabled() and len(x) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.seen.append((x.cpu(), x.stride()))
        return self.last(x.mean((2, 3)))


class Counted(piece_prefetch.PiecePrefetcher):
    """Counts micro-batches that arrive before their computation."""

    count = 0

    def take(self, rows):
        Counted.count += self._is_copied and self._rows == rows
        return super().take(rows)


replay.PiecePrefetcher = weighted.PiecePrefetcher = Counted
# Only the computation counts, not the trial before it.
accumulation.look_for_mixing = replay.look_for_mixing = streamed.look_for_mixing = lambda *arguments, **options: None


def coupled(outputs, targets):
    return outputs.square().sum()


def wrong_pieces(model, strides):
    begin, wrong = 0, 0
    for piece, stride in model.seen:
        expected = IMAGES[begin : begin + len(piece)]
        wrong += not torch.equal(piece, expected) or (len(piece) > 1 and stride != strides)
        begin = (begin + len(piece)) % BATCH
    return wrong


# Libraries allocate their workspaces.
memlab.accumulate(Model(PIECE).cuda(), IMAGES, nn.CrossEntropyLoss(), targets=LABELS, micro_batch=PIECE)
for kind, (inputs, targets) in KINDS.items():
    for way, loss_fn in (("pieces", nn.CrossEntropyLoss()), ("replay", coupled), ("iterable", nn.CrossEntropyLoss())):
        if way == "iterable" and isinstance(inputs, dict):
            continue
        for room in (PIECE,) if way == "iterable" else (PIECE, PIECE - 1):
            model = Model(room).cuda()
            Counted.count = 0
            before = torch.cuda.memory_allocated()
            if way == "iterable":
                pieces = zip(inputs.split(PIECE), targets.split(PIECE), strict=True)
                memlab.accumulate(model, pieces, loss_fn, micro_batch=PIECE)
            else:
                memlab.accumulate(model, inputs, loss_fn, targets=targets, micro_batch=PIECE)
            model.zero_grad()
            gc.collect()
            left = torch.cuda.memory_allocated() - before
            images = inputs["x"][0] if isinstance(inputs, dict) else inputs
            wrong = wrong_pieces(model, torch.empty_like(images).stride())
            row = {
                "kind": kind,
                "way": way,
                "pieces": len(model.seen),
                "ahead": Counted.count,
                "wrong": wrong,
                "left": left,
            }
            print(json.dumps(row))
