"""Phases after the training steps in a program that `memlab plan` records: evaluation, and saving a checkpoint.

The epoch is cut short. The DataLoader of the training ends, each later one yields a few batches, and the program ends in
the first step of the next epoch. A loop that reads no DataLoader, or that evaluates within its epochs, continues until it
has evaluated, if its code contains an evaluation. From the last recorded step on, the program writes no files: it would
replace those of a real training.
"""

import contextlib
import dis
import functools
import importlib
import inspect
import os
import shutil
import sys
import threading
import time

import _memlab_outside as outside

TRAINING, EVALUATION, SAVING, REST, FAILED = range(5)
# The third batch is the first with the previous batch's outputs still allocated, as in all later ones.
BATCHES = 3
# Steps that a program may still take without a new DataLoader iterator: it may hold one batch already.
STEPS_LEFT = 3
# The same for a loop that reads no DataLoader and evaluates, or evaluates within an epoch. Later evaluations are ignored.
STEPS_TO_EVALUATION = 64
SHORTEST_SECONDS = 20.0


class Nowhere:
    """A file that discards everything written to it."""

    def write(self, data):
        return memoryview(data).nbytes

    def flush(self):
        pass


class Phases:
    """The phases of one process, from its first step to its end."""

    def __init__(self, torch, scratch, end):
        self.torch, self.scratch, self.end = torch, scratch, end
        self.outside = outside.Outside(scratch)
        self.pid = os.getpid()
        self.begun = time.monotonic()
        self.marks = []  # (allocations by device, phase)
        self.is_over = False  # True once all recorded steps are done.
        self.has_new_batch = False
        # For a loop that evaluates every few steps: True while an evaluation is awaited, and once one has begun.
        self.is_awaited = self.has_evaluated = False
        self.steps_left = STEPS_LEFT
        self.loader = None

    def after_step(self):
        """Called after each step before the last recorded one."""
        if self.loader is not None:
            self.loader.is_trained_on = True
            self.loader = None

    def after_last_step(self):
        """Called after the last recorded step and each later one.

        Begins the phases after training, or ends the program if it has no epoch to cut short.
        """
        if self.is_over:
            self.steps_left -= 1
            if self.is_awaited and self.loader is not None:
                if self.has_evaluated or self.steps_left == 0:
                    self.loader.is_trained_on = True
                    self.stop_waiting()
                return
            if self.has_new_batch:
                self.marks[-1] = (self.marks[-1][0], TRAINING)
            if self.has_new_batch or self.has_evaluated or self.steps_left == 0:
                self.end()
            return
        if self.loader is not None:
            self.is_awaited = evaluates_in_its_loop(sys._getframe())
            self.loader.is_trained_on = not self.is_awaited
        elif evaluates(sys._getframe()):
            self.is_awaited = True
        else:
            self.end()
            return
        self.is_over = True
        if self.is_awaited:
            self.steps_left = STEPS_TO_EVALUATION
        self.marks.append((self.allocations(), TRAINING))
        self.outside.leave_as_it_is()
        timer = threading.Timer(max(SHORTEST_SECONDS, time.monotonic() - self.begun), self.end)
        timer.daemon = True
        timer.start()

    def stop_waiting(self):
        """Stops waiting for an evaluation, so that the epoch ends as usual."""
        self.loader, self.steps_left = None, STEPS_LEFT
        self.is_awaited = self.has_evaluated = self.has_new_batch = False

    def mark(self, phase, anew=False):
        """Marks the beginning of a phase. `anew`: even if the same phase is current, as for a second evaluation."""
        if (self.marks and self.marks[-1][1] == phase and not anew) or os.getpid() != self.pid:
            return
        self.marks.append((self.allocations(), phase))

    def allocations(self):
        cuda = self.torch.cuda
        stats = [cuda.memory_stats(device) for device in range(cuda.device_count())]
        return [each.get("allocation.all.allocated", 0) for each in stats]

    def batch(self, loader, read):
        """Returns the next batch of an iterator over a DataLoader."""
        if not self.is_over:
            self.loader = loader
            return read(loader)
        if self.is_awaited and loader is self.loader:
            try:
                return read(loader)
            except StopIteration:
                self.stop_waiting()
                self.mark(REST)
                raise
        if getattr(loader, "is_trained_on", False):
            self.mark(REST)
            raise StopIteration
        loader.batches_read = getattr(loader, "batches_read", 0) + 1
        if loader.batches_read > BATCHES:
            raise StopIteration
        if loader.batches_read == 1:
            self.has_new_batch = True
            self.mark(EVALUATION, anew=True)
        return read(loader)

    def switched(self, trains):
        """Called when a module switches to training or to evaluation."""
        if self.is_awaited and self.is_over and not trains:
            self.has_evaluated = True
            self.mark(EVALUATION)
        elif self.has_evaluated:
            self.mark(TRAINING)

    def saving(self):
        if self.is_over:
            self.mark(SAVING)

    def finish(self):
        """Called before the process ends."""
        if self.is_over and hasattr(sys, "last_value"):
            self.mark(FAILED)
        with contextlib.suppress(OSError):
            shutil.rmtree(self.scratch, ignore_errors=True)

    # Patches, each applied after its module was imported.

    def patch(self):
        torch = self.torch
        loaders = importlib.import_module("torch.utils.data.dataloader")._BaseDataLoaderIter
        read, reset = loaders.__next__, loaders._reset

        def next_(loader):
            return self.batch(loader, read)

        def reset_(loader, *arguments, **options):
            loader.is_trained_on, loader.batches_read = False, 0
            return reset(loader, *arguments, **options)

        loaders.__next__, loaders._reset = next_, reset_
        save, state_dict, train = torch.save, torch.nn.Module.state_dict, torch.nn.Module.train

        @functools.wraps(train)
        def train_(module, mode=True):
            self.switched(mode)
            return train(module, mode)

        @functools.wraps(save)
        def save_(what, to, *arguments, **options):
            self.saving()
            return save(what, Nowhere() if self.is_over else to, *arguments, **options)

        @functools.wraps(state_dict)
        def state_dict_(*arguments, **options):
            self.saving()
            return state_dict(*arguments, **options)

        torch.save = torch.serialization.save = save_
        torch.nn.Module.state_dict = state_dict_
        torch.nn.Module.train = train_

    def patch_safetensors(self, safetensors):
        for name in ("save_file", "save_model"):
            save = getattr(safetensors, name, None)
            if save is not None:
                setattr(safetensors, name, self.unless_over(save))

    def patch_distributed(self, saver):
        """Patches `torch.distributed.checkpoint` to save in this process, where files are protected."""
        for name in ("save", "async_save"):
            setattr(saver, name, self.in_this_process(getattr(saver, name)))

    def in_this_process(self, save):
        @functools.wraps(save)
        def in_this_process(*arguments, **options):
            self.saving()
            if self.is_over:
                options.pop("async_checkpointer_type", None)
            return save(*arguments, **options)

        return in_this_process

    def unless_over(self, save):
        # These functions would copy the whole model to the host, and allocate no GPU memory.
        @functools.wraps(save)
        def unless_over(*arguments, **options):
            self.saving()
            return None if self.is_over else save(*arguments, **options)

        return unless_over

    def patch_trainer(self, callbacks):
        """Makes Hugging Face's Trainer evaluate and save at the end of the short epoch.

        It would do both after a number of steps, which are not run.
        """
        flow = callbacks.DefaultFlowCallback
        ended = flow.on_epoch_end

        @functools.wraps(ended)
        def on_epoch_end(callback, args, state, control, **options):
            control = ended(callback, args, state, control, **options)
            if self.is_over:
                evaluates = getattr(args, "eval_strategy", getattr(args, "evaluation_strategy", "no"))
                control.should_evaluate = getattr(evaluates, "value", evaluates) != "no"
                control.should_save = getattr(args.save_strategy, "value", args.save_strategy) != "no"
                args.output_dir, args.push_to_hub = self.scratch, False
            return control

        flow.on_epoch_end = on_epoch_end


def evaluates(frame):
    """Returns True if a running function of the program, or another one in its file, calls something named `eval`."""
    while frame is not None:
        if "-packages" not in frame.f_code.co_filename:
            functions = [value.__code__ for value in list(frame.f_globals.values()) if hasattr(value, "__code__")]
            of_file = [code for code in functions if code.co_filename == frame.f_code.co_filename]
            if any("eval" in code.co_names for code in (frame.f_code, *of_file)):
                return True
        frame = frame.f_back
    return False


def evaluates_in_its_loop(frame):
    """Returns True if the program's innermost running `for` loop calls `eval`.

    The call may be direct, or in a function or method of the program that the loop calls.
    """
    while frame is not None:
        if "-packages" not in frame.f_code.co_filename:
            instructions = list(dis.get_instructions(frame.f_code))
            loops = [(one.offset, one.argval) for one in instructions if one.opname == "FOR_ITER"]
            around = [(begin, end) for begin, end in loops if begin < frame.f_lasti < end]
            if around:
                begin, end = max(around)
                names = {one.argval for one in instructions if begin < one.offset < end and isinstance(one.argval, str)}
                own = type(variable(frame, "self"))
                called = [code_of(frame.f_globals.get(name, getattr(own, name, None))) for name in names]
                return "eval" in names or any("eval" in code.co_names for code in called if code is not None)
        frame = frame.f_back
    return False


def variable(frame, name):
    """Returns a variable of a running function.

    Before CPython 3.13, a frame keeps the copies that `f_locals` makes, even of variables that the program deletes. This
    function drops the copies, unless the program holds them (`locals()`).
    """
    copies, code = frame.f_locals, frame.f_code
    value = copies.get(name)
    is_copied = sys.version_info < (3, 13) and code.co_flags & inspect.CO_OPTIMIZED
    if is_copied and sys.getrefcount(copies) == 3:  # Held by the frame, this function and the call.
        for copied in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            copies.pop(copied, None)
    return value


def code_of(function):
    """Returns the code of a Python function, also of one inside wrappers."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(function, "__code__", None)
