"""PyTorch Lightning in a program that `memlab plan` records: it evaluates and saves when the recorded steps are over.

Lightning decides itself when an epoch ends, when it evaluates and when it saves, by counting batches. Loggers and
checkpoints would write to where a real training has its own: here they do not, from the start.
"""

import functools
import os

import _memlab_phases as phases

# By either name it is installed: https://lightning.ai/docs/pytorch/stable/upgrade/from_1_9.html
PACKAGES = ("lightning.pytorch", "pytorch_lightning")
FABRICS = ("lightning.fabric", "lightning_fabric")


def calls(recorded):
    """What to call when a module was imported, by its name. `recorded`: the phases of the program."""
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
    """The last recorded step is the last of its epoch, and evaluation follows it and no step before it."""
    loop = module._TrainingEpochLoop
    ended = loop.on_advance_end

    @functools.wraps(ended)
    def on_advance_end(epoch, fetcher):
        if recorded.is_over:
            epoch.batch_progress.is_last_batch = fetcher.done = True
            ended(epoch, fetcher)  # Twice: the metrics of an evaluation stay until the next one has its own.
        return ended(epoch, fetcher)

    def is_evaluated(epoch, _fetcher):
        return recorded.is_over and epoch.trainer.enable_validation

    loop.on_advance_end, loop._should_check_val_fx = on_advance_end, is_evaluated


def patch_checkpoints(recorded, module):
    """What is saved after a number of steps, of epochs or some time is saved at the end of the short epoch."""
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
    """Its loggers write to the plan's folder. The evaluation before the first step is one."""
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
    """Checkpoints are files of Lightning's own making, written and removed through fsspec."""

    def save_checkpoint(_io, checkpoint, _path, storage_options=None):
        del storage_options
        recorded.torch.save(checkpoint, phases.Nowhere())

    module.TorchCheckpointIO.save_checkpoint = save_checkpoint
    module.TorchCheckpointIO.remove_checkpoint = lambda _io, _path: None
