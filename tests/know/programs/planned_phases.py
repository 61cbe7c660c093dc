"""Training with evaluation and checkpoints for `memlab plan`: `planned_phases.py KIND --batch N`.

Prints PyTorch's own peaks at the end, as JSON: of training, evaluation and saving, and of the whole run.
"""

import argparse
import json
import os
import tempfile

import torch
from planned import CONTEXT, GPT, HEADS, WIDTH, WORDS
from torch.utils.data import DataLoader

STEPS, EVALUATIONS, EPOCHS = 9, 7, 3


class Peaks:
    """Peaks of PyTorch's counters in each phase."""

    def __init__(self):
        self.most, self.whole = {}, [0, 0]

    def end(self, phase):
        now = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
        self.most[phase] = [max(*pair) for pair in zip(now, self.most.get(phase, [0, 0]), strict=True)]
        self.whole = [max(*pair) for pair in zip(now, self.whole, strict=True)]
        torch.cuda.reset_peak_memory_stats()


def words(count):
    return torch.randint(0, WORDS, (count, CONTEXT))


def epochs(batch, evaluated, options, peaks):
    """A plain loop. It keeps evaluation results on the host."""
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    training = DataLoader(words(batch * options.steps), batch, shuffle=True, num_workers=options.workers)
    evaluation = DataLoader(words(evaluated * EVALUATIONS), evaluated, num_workers=options.workers)
    for epoch in range(EPOCHS):
        for tokens in training:
            model(tokens.cuda()).backward()
            optimizer.step()
            optimizer.zero_grad()
        del tokens
        peaks.end("training")
        model.eval()
        total = 0
        with torch.no_grad():
            for tokens in evaluation:
                total += model(tokens.cuda()).item()
        model.train()
        if options.fails:
            raise RuntimeError(f"the mean is {1 / total}")
        peaks.end("evaluation")
        if options.saving == "none":
            continue
        clone = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        save({"model": clone, "optimizer": optimizer.state_dict()}, options)
        del clone
        with open(f"{options.checkpoint}.txt", "w") as log:
            log.write(f"{epoch}")
        peaks.end("saving")


def steps(batch, evaluated, options, peaks):
    """A plain loop without a DataLoader, which evaluates every few steps."""
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, EPOCHS * options.steps + 1):
        model(words(batch).cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % options.steps == 0:
            peaks.end("training")
            evaluate(model, evaluated)
            peaks.end("evaluation")


def within(batch, evaluated, options, peaks):
    """A plain loop over a DataLoader, which evaluates every few steps, and saves after each epoch."""
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    training = DataLoader(words(batch * 3 * options.steps), batch, shuffle=True)
    evaluation = DataLoader(words(evaluated * EVALUATIONS), evaluated)
    for _ in range(EPOCHS):
        for step, tokens in enumerate(training, 1):
            model(tokens.cuda()).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % options.steps == 0:
                peaks.end("training")
                evaluate_all(model, evaluation)
                peaks.end("evaluation")
        clone = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        save({"model": clone, "optimizer": optimizer.state_dict()}, options)
        del clone
        peaks.end("saving")


@torch.no_grad()
def evaluate_all(model, evaluation):
    model.eval()
    total = 0
    for tokens in evaluation:
        total += model(tokens.cuda()).item()
    model.train()
    return total


@torch.no_grad()
def evaluate(model, evaluated):
    model.eval()
    losses = [model(words(evaluated).cuda()) for _ in range(EVALUATIONS)]
    model.train()
    return torch.stack(losses).mean().item()


def save(state, options):
    if options.saving == "torch":
        torch.save(state, options.checkpoint)
        return
    import torch.distributed.checkpoint as checkpoints

    if options.saving == "distributed":
        checkpoints.save(state, checkpoint_id=options.checkpoint, no_dist=True)
        return
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    kind = AsyncCheckpointerType.PROCESS if options.saving == "async-process" else AsyncCheckpointerType.THREAD
    checkpoints.async_save(state, checkpoint_id=options.checkpoint, no_dist=True, async_checkpointer_type=kind).result()


def trainer(batch, evaluated, options, peaks):
    import transformers

    config = transformers.GPT2Config(n_layer=3, n_embd=WIDTH, n_head=HEADS, vocab_size=WORDS, n_positions=CONTEXT)
    strategy = {"eval_strategy": options.strategy, "save_strategy": options.strategy}
    often = {"eval_steps": 8, "save_steps": 8} if options.strategy == "steps" else {}
    arguments = transformers.TrainingArguments(
        options.checkpoint, per_device_train_batch_size=batch, per_device_eval_batch_size=evaluated, num_train_epochs=EPOCHS,
        report_to=[], disable_tqdm=True, prediction_loss_only=True, save_total_limit=1, **strategy, **often,
    )  # fmt: skip
    data = [
        [{"input_ids": row, "labels": row} for row in words(count)] for count in (batch * STEPS, evaluated * EVALUATIONS)
    ]
    model = transformers.GPT2LMHeadModel(config)
    transformers.Trainer(model, arguments, train_dataset=data[0], eval_dataset=data[1]).train()
    peaks.end("all")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["epochs", "steps", "within", "trainer"])
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--evaluated", type=int, help="the batch of the evaluation, if not four times that of the training")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--strategy", default="epoch")
    parser.add_argument("--saving", choices=["torch", "none", "distributed", "async", "async-process"], default="torch")
    parser.add_argument("--fails", action="store_true")
    parser.add_argument("--checkpoint")
    options = parser.parse_args()
    peaks = Peaks()
    evaluated = options.evaluated or 4 * options.batch
    with tempfile.TemporaryDirectory() as folder:
        options.checkpoint = options.checkpoint or os.path.join(folder, "checkpoint")
        kinds = {"epochs": epochs, "steps": steps, "within": within, "trainer": trainer}
        kinds[options.kind](options.batch, evaluated, options, peaks)
    print(json.dumps(peaks.most | {"whole": peaks.whole}))


if __name__ == "__main__":
    main()
