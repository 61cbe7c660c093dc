"""What pieces of a batch on the CPU are when they are computed on a GPU, whose copies are real also if it is simulated.

Prints for each kind of batch how many pieces were computed, how many of them were copied ahead, how many were not what they
should be, and what is left of it in the GPU's memory."""

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
piece_prefetch._PART_BYTES = 2 * IMAGES[0].nbytes  # A piece goes in several parts.


class Model(nn.Module):
    """Remembers what it was given. With a graph there may be no room for a whole piece."""

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
    """Counts pieces that were there when they were to be computed."""

    count = 0

    def take(self, rows):
        Counted.count += self._is_copied and self._rows == rows
        return super().take(rows)


replay.PiecePrefetcher = weighted.PiecePrefetcher = Counted
# Only what is computed is looked at: not what is tried before.
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


# Libraries take their workspaces.
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
