"""A feeder in other libraries' loops: Hugging Face's Trainer, loops that save their loader, programs without PyTorch."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import memlab as package
import torch
from conftest import ROOT
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments


class Tiny(PreTrainedModel):
    """A model of one layer, which records its inputs."""

    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(2, 1, dtype=torch.float64)
        self.seen = []

    def forward(self, values=None, labels=None):
        self.seen.append(labels.int().tolist())
        return {"loss": (self.layer(values).squeeze(-1) - labels).square().mean()}


class FeederTrainer(Trainer):
    """The class that a user writes to feed a Trainer."""

    def __init__(self, feeder, **options):
        super().__init__(**options)
        self.feeder = feeder

    def get_train_dataloader(self):
        return self.feeder

    def get_eval_dataloader(self, eval_dataset=None):
        return self.feeder


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


def feeder_of(samples, **options):
    config = package.Config("1MiB", None, samples, (2,), (), None, batch_size=4, workers=2)
    ids = range(samples)
    read, label = (lambda number: [torch.full((2,), number)]), (lambda number: [torch.tensor(number)])
    return package.Feeder(config, ids, ids, read, label, make_batch=lambda x, y: {"values": x, "labels": y}, **options)


def trainer_of(folder, feeder, **options):
    arguments = TrainingArguments(
        str(folder), use_cpu=True, report_to=[], logging_strategy="no", disable_tqdm=True, save_strategy="no", **options
    )
    return FeederTrainer(feeder, model=Tiny(PretrainedConfig()), args=arguments)


def test_hugging_face_trainer(tmp_path):
    # GIVEN a Trainer with a shuffled feeder as its loader
    with feeder_of(10, shuffle=True, seed=1) as feeder:
        trainer = trainer_of(tmp_path, feeder, num_train_epochs=2)
        # WHEN it trains two epochs
        result = trainer.train()
        # THEN it knows the number of steps, and has seen each sample once per epoch, in another order
        assert result.global_step == 6 and result.metrics["epoch"] == 2
        first, second = flat(trainer.model.seen[:3]), flat(trainer.model.seen[3:])
        assert sorted(first) == sorted(second) == list(range(10)) and first != second
        # AND after an interruption, another Trainer continues with the rest
    interrupted, resumed = feeder_of(10, shuffle=True, seed=1), feeder_of(10, shuffle=True, seed=1)
    with interrupted, resumed:
        trainer = trainer_of(tmp_path, interrupted, max_steps=2)
        trainer.train()
        assert trainer.model.seen == [first[:4], first[4:8]]
        resumed.load_state_dict(interrupted.state_dict())
        trainer = trainer_of(tmp_path, resumed, max_steps=1)
        trainer.train()
        assert trainer.model.seen == [first[8:]]


def test_hugging_face_evaluation(tmp_path):
    # GIVEN a Trainer with a feeder; WHEN it evaluates, THEN each sample counts once
    with feeder_of(10) as feeder:
        trainer = trainer_of(tmp_path, feeder)
        loop = trainer.evaluation_loop(feeder, "evaluation", prediction_loss_only=True)
        assert flat(trainer.model.seen) == list(range(10))
        assert loop.num_samples == 10


def test_a_loop_that_saves_its_loader():
    # GIVEN the calls of Lightning's loops: a sanity check of two batches, epochs with `set_epoch`, the loader's state in
    # checkpoints
    with feeder_of(20, shuffle=True) as feeder, feeder_of(20, shuffle=True) as resumed:
        for _, _ in zip(range(2), feeder, strict=False):
            pass
        epochs = []
        for number in range(2):
            feeder.set_epoch(number)
            epochs.append([])
            for step, batch in enumerate(feeder):
                epochs[-1].append(batch["labels"].tolist())
                if (number, step) == (1, 2):
                    checkpoint = json.dumps(feeder.state_dict())
        assert [sorted(flat(epoch)) for epoch in epochs] == [list(range(20))] * 2
        # WHEN it resumes from the checkpoint, THEN the rest of that epoch follows
        resumed.load_state_dict(json.loads(checkpoint))
        resumed.set_epoch(1)
        iter(resumed)  # Tests whether the loader is iterable.
        assert len(resumed) == 5
        assert [batch["labels"].tolist() for batch in resumed] == epochs[1][3:]


def test_without_pytorch(memlab):
    # GIVEN a Python without PyTorch; WHEN a feeder reads arrays in threads and processes
    program = """
if __name__ == "__main__":
    import sys
    sys.modules["torch"] = None
    import readers, memlab
    for workers, processes in ((0, False), (2, False), (2, True)):
        config = memlab.Config("1MiB", None, 9, (2,), (), None, batch_size=4, workers=workers)
        with memlab.Feeder(config, range(9), range(9), readers.read, readers.label, processes=processes) as feeder:
            print(sum(outputs.sum() for inputs, outputs in feeder))
"""
    (memlab.folder / "program.py").write_text(program)
    environment = memlab.environment(PYTHONPATH=f"{ROOT / 'python'}:{ROOT / 'tests'}:{Path(__file__).parent}")
    done = subprocess.run([sys.executable, memlab.folder / "program.py"], capture_output=True, text=True, env=environment)
    # THEN it works
    assert done.stdout == "36.0\n" * 3, done.stderr


def test_import_without_numpy(memlab):
    # GIVEN the package; WHEN it is imported, THEN it imports neither NumPy nor PyTorch
    code = "import memlab, sys; print({'numpy', 'torch'} & set(sys.modules))"
    environment = memlab.environment(PYTHONPATH=ROOT / "python")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout == "set()\n", done.stderr
