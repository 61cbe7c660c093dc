"""Trainer callbacks in training on two simulated cards: rank 0 logs its own memory, and the report covers both ranks."""

import json
import re

import logged_trainings
import loggers
import pytest
from conftest import PYTHON

pytest.importorskip("tensorboard")

# Each rank prints its line in one write, because both print at once. PyTorch's counters right before and after memlab reads
# its own: Gloo's threads free memory at any time.
MEASURED = """
from memlab._logging.figures import Interval

def counters():
    return torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()

def measured(interval, read=Interval.next):
    before = counters()
    figures = read(interval)
    seen.append([sorted(both) for both in zip(before, counters())])
    torch.cuda.reset_peak_memory_stats()
    return figures

def begun(interval, begin=Interval.begin):
    begin(interval)
    torch.cuda.reset_peak_memory_stats()

seen = []
Interval.next, Interval.begin = measured, begun
"""
# Rank 1 keeps more than rank 0, so that their figures differ. Uses Gloo, because ranks do not wait for each other with
# NCCL's stand-in, which only counts the objects that Lightning sends.
LIGHTNING = (
    logged_trainings.LIGHTNING
    + MEASURED
    + """
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy

class Model(Small):
    def training_step(self, batch, index):
        self.kept.append(torch.zeros((1 + self.global_rank) << 20, device=self.device))
        return self.net(batch[0]).square().mean()

trainer = pl.Trainer(
    max_epochs=1, accelerator="gpu", devices=2, strategy=DDPStrategy(process_group_backend="gloo"),
    logger=TensorBoardLogger("."), log_every_n_steps=2, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[MemlabCallback()],
)
trainer.fit(Model(), data)
print(json.dumps([trainer.global_rank, seen]) + '\\n', end='', flush=True)
"""
)
HUGGING_FACE = (
    logged_trainings.HUGGING_FACE
    + MEASURED
    + """
class Keeping(transformers.TrainerCallback):
    kept = []

    def on_step_end(self, args, state, control, **_):
        self.kept.append(torch.zeros((1 + args.process_index) << 20, device=args.device))

arguments = transformers.TrainingArguments(
    "out", per_device_train_batch_size=4, max_steps=6, report_to=["tensorboard"], logging_steps=2, save_strategy="no",
    disable_tqdm=True, ddp_backend="gloo",
)
callbacks = [MemlabCallback(), Keeping()]
transformers.Trainer(model=model, args=arguments, train_dataset=Texts(), callbacks=callbacks).train()
print(json.dumps([arguments.process_index, seen]) + '\\n', end='', flush=True)
"""
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("needed", "program", "logs", "prefix", "steps"),
    [
        ("lightning", LIGHTNING, "lightning_logs/version_0", "", [1, 3, 5]),
        ("accelerate", HUGGING_FACE, "out/runs/*", "train/", [2, 4, 6]),
    ],
    ids=["lightning", "hugging face"],
)
def test_rank_0_logs_its_own_memory_and_reports_on_all(memlab, needed, program, logs, prefix, steps):
    pytest.importorskip(needed)
    # GIVEN training on two cards, the second of which holds more
    script = memlab.folder / "program.py"
    script.write_text(program)
    # WHEN torchrun starts it under `memlab run`, with the callback in each rank
    torchrun = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    run = memlab.run(memlab.command, "run", "-o", "job/%r.jsonl", "--", *torchrun, script, preload=False, devices=2)
    assert run.code == 0, run.errors
    truth = dict(json.loads(line) for line in run.output.splitlines() if line.startswith("["))
    assert truth[0] and not truth[1]
    # THEN the log of rank 0 has PyTorch's peak and allocated bytes of rank 0, each once
    (folder,) = memlab.folder.glob(logs)
    rows = loggers.tensorboard(folder)
    for index, name in enumerate(("peak", "allocated")):
        # (Hugging Face's Trainer sends the last step to its callbacks twice.)
        logged = rows[f"{prefix}memlab/{name}"]
        assert [step for step, _ in logged] == steps
        for (_, nbytes), counted in zip(logged, truth[0], strict=False):
            least, most = counted[index]
            assert least <= nbytes <= most
    # AND one report covers both ranks
    (page,) = memlab.folder.rglob("memlab-report.html")
    assert "2 ranks" in re.sub(r"<[^>]+>", "", page.read_text())
