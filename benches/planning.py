"""Programs for `plan_peers.py`, and each method's figures for them: `planning.py METHOD PROGRAM BATCH…` prints JSON."""

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn import functional

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "know" / "programs"))
sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))
import planned
import train_gpt

CONTEXT, WORDS = 1024, 50257


@dataclass
class Program:
    """A training."""

    model: Callable[[], torch.nn.Module]
    #: Function that makes a batch of this many rows, on a device.
    batch: Callable[[int, str], Any]
    #: Function of a model and a batch.
    loss: Callable[[torch.nn.Module, Any], torch.Tensor]
    batches: tuple[int, int]
    amp: torch.dtype | None = None


def gpt():
    return train_gpt.GPT(WORDS, 768, 6, 12, CONTEXT)


def tokens(rows, device):
    return torch.zeros(rows, CONTEXT, dtype=torch.long, device=device)


def images(rows, device):
    return torch.zeros(rows, 3, 224, 224, device=device)


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config())


def llama():
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            num_hidden_layers=8, hidden_size=768, intermediate_size=2048, num_attention_heads=12, vocab_size=32000
        )
    )


def next_token(model, ids):
    return functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def class_loss(model, batch):
    return functional.cross_entropy(model(batch), torch.zeros(len(batch), dtype=torch.long, device=batch.device))


def hugging_face_loss(model, ids):
    return model(input_ids=ids, labels=ids).loss


PROGRAMS = {
    "gpt": Program(gpt, tokens, next_token, (4, 12)),
    "gpt-amp": Program(gpt, tokens, next_token, (4, 12), torch.bfloat16),
    "resnet": Program(planned.resnet, images, class_loss, (12, 48)),
    "gpt2": Program(gpt2, tokens, hugging_face_loss, (4, 8)),
    "llama": Program(llama, tokens, hugging_face_loss, (4, 12), torch.bfloat16),
}


def step(program, model, optimizer, batch):
    with torch.autocast("cuda", dtype=program.amp, enabled=program.amp is not None):
        loss = program.loss(model, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def train(name, rows, steps="8"):
    program = PROGRAMS[name]
    with torch.device("cuda"):
        model = program.model()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(int(steps)):
        step(program, model, optimizer, program.batch(int(rows), "cpu").to("cuda"))
    return torch.cuda.max_memory_reserved()


def inspected(name, *rows):
    import memlab

    program = PROGRAMS[name]
    with torch.device("meta"):
        model = Whole(program)
    report = memlab.inspect(model, program.batch(1, "cpu"), amp=program.amp, optimizer="adamw", source="simulated")
    return [report.peak(int(batch)).reserved for batch in rows]


class Whole(torch.nn.Module):
    """A model with its loss."""

    def __init__(self, program):
        super().__init__()
        self.model, self.loss = program.model(), program.loss

    def forward(self, batch):
        return self.loss(self.model, batch)


def estimated(name, *rows):
    """accelerate's estimate, which is the same for all batches."""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    program = PROGRAMS[name]
    with torch.device("meta"):
        size, _ = calculate_maximum_sizes(program.model())
    usage = estimate_training_usage(size, "bfloat16" if program.amp else "float32")
    return [max(usage.values())] * len(rows)


def tracked(name, *rows):
    from torch._subclasses import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    torch.zeros(1, device="cuda")
    peaks = []
    for count in map(int, rows):
        program = PROGRAMS[name]
        with FakeTensorMode():
            with torch.device("cuda"):
                model = program.model()
            optimizer = torch.optim.AdamW(model.parameters())
            tracker = MemTracker()
            tracker.track_external(model, optimizer)
            with tracker:
                # The first step makes the optimizer's state.
                for _ in range(2):
                    step(program, model, optimizer, program.batch(count, "cuda"))
                    tracker.reset_mod_stats()
            by_device = tracker.get_tracker_snapshot("peak")
            peaks.append(by_device[torch.device("cuda:0")]["Total"])
    return peaks


def found_by_lightning(name):
    """Result of its batch-size finder, used as documented."""
    import lightning
    from lightning.pytorch.tuner import Tuner

    program = PROGRAMS[name]

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.whole, self.batch_size = Whole(program), 2

        def training_step(self, batch, _index):
            return self.whole(batch)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

        def train_dataloader(self):
            row = program.batch(1, "cpu")[0]
            return torch.utils.data.DataLoader([row] * 100_000, batch_size=self.batch_size)

    # Folder in which it saves the model, to restore it.
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="gpu", devices=1, logger=False, enable_checkpointing=False, default_root_dir=folder,
            enable_progress_bar=False, enable_model_summary=False, precision="bf16-mixed" if program.amp else "32-true",
        )  # fmt: skip
        return {"largest_batch": Tuner(trainer).scale_batch_size(Module(), mode="binsearch")}


METHODS: dict[str, Callable[..., Any]] = {
    "train": train,
    "memlab.inspect": inspected,
    "accelerate": estimated,
    "MemTracker": tracked,
    "lightning": found_by_lightning,
    "imports": lambda: None,
}


if __name__ == "__main__":
    _, method, *arguments = sys.argv
    with contextlib.redirect_stdout(sys.stderr):
        answer = METHODS[method](*arguments)
    print(json.dumps(answer))
