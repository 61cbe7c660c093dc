"""Patches PyTorch Lightning in a program that `memlab plan` records: it evaluates and saves after the recorded steps.

Lightning counts batches to decide when an epoch ends, when to evaluate and when to save. Loggers and checkpoints would
write to the folders of a real training. The patches redirect or drop these writes from the start.
"""

import functools
import os

import _memlab_phases as phases

# Lightning is installed under either name: https://lightning.ai/docs/pytorch/stable/upgrade/from_1_9.html
PACKAGES = ("lightning.pytorch", "pytorch_lightning")
FABRICS = ("lightning.fabric", "lightning_fabric")


def calls(recorded):
    """Returns the patches by name of the module after whose import they run. `recorded`: the program's phases."""
    of_package = {
        "loops.training_epoch_loop": patch_epoch,
        "callbacks.model_checkpoint": patch_checkpoints,
        "trainer.trainer": patch_trainer,
    }
    return {
        f"{package}.{module}": functools.partial(patch, recorded)
        for package in PACKAGES
        for module, patch in of_package.items()
    } | {f"{fabric}.plugins.io.torch_io": functools.partial(patch_files, recorded) for fabric in FABRICS}


def patch_epoch(recorded, module):
    """Ends the epoch after the last recorded step, and evaluates then and at no earlier step."""
    loop = module._TrainingEpochLoop
    ended = loop.on_advance_end

    @functools.wraps(ended)
    def on_advance_end(epoch, fetcher):
        if recorded.is_over:
            epoch.batch_progress.is_last_batch = fetcher.done = True
            ended(epoch, fetcher)  # Twice: an evaluation's metrics stay until the next evaluation has its own.
        return ended(epoch, fetcher)

    def is_evaluated(epoch, _fetcher):
        return recorded.is_over and epoch.trainer.enable_validation

    loop.on_advance_end, loop._should_check_val_fx = on_advance_end, is_evaluated


def patch_checkpoints(recorded, module):
    """Saves at the end of the short epoch what is due after a number of steps or epochs, or after some time."""
    checkpoint = module.ModelCheckpoint

    def at_this_epoch(ended):
        @functools.wraps(ended)
        def at_this_epoch(callback, *arguments):
            saves = callback._every_n_epochs or callback._every_n_train_steps or callback._train_time_interval
            if recorded.is_over and saves:
                callback._every_n_epochs = 1
            return ended(callback, *arguments)

        return at_this_epoch

    for name in ("on_train_epoch_end", "on_validation_end"):
        setattr(checkpoint, name, at_this_epoch(getattr(checkpoint, name)))


def patch_trainer(recorded, module):
    """Redirects loggers to the plan's folder, and marks the sanity check before the first step as an evaluation."""
    trainer = module.Trainer
    begin, check = trainer.__init__, trainer._run_sanity_check

    @functools.wraps(begin)
    def begin_(self, *arguments, **options):
        begin(self, *arguments, **options)
        for logger in self.loggers:
            for folder in ("_root_dir", "_save_dir"):
                if isinstance(getattr(logger, folder, None), (str, os.PathLike)):
                    setattr(logger, folder, recorded.scratch)

    @functools.wraps(check)
    def check_(self):
        recorded.mark(phases.EVALUATION)
        check(self)
        recorded.mark(phases.TRAINING)

    trainer.__init__, trainer._run_sanity_check = begin_, check_


def patch_files(recorded, module):
    """Discards checkpoints, which Lightning writes and removes through fsspec."""

    def save_checkpoint(_io, checkpoint, _path, storage_options=None):
        del storage_options
        recorded.torch.save(checkpoint, phases.Nowhere())

    module.TorchCheckpointIO.save_checkpoint = save_checkpoint
    module.TorchCheckpointIO.remove_checkpoint = lambda _io, _path: None
