"""`memlab.log` and the trainers' callbacks: real loggers receive PyTorch's own figures, to the byte."""

import json
import weakref
from textwrap import dedent

import logged_trainings
import loggers
import memlab as package
import pytest
from conftest import ROOT
from tool_runs import START, run_tool

for needed in ("tensorboard", "wandb", "mlflow"):
    pytest.importorskip(needed)

# MLflow's files in the test's folder, and W&B without its servers.
OFFLINE = {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": "file:./mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"}
# Longer than any machine needs, instead of W&B's 30 and 90 seconds.
OFFLINE |= {"WANDB__SERVICE_WAIT": "240", "WANDB_INIT_TIMEOUT": "240"}
PLAIN = """
import json, mlflow, torch, wandb, memlab
from torch.utils.tensorboard import SummaryWriter

def keep(figures, step):
    seen.append([step, figures["own/peak"]])

seen, truth, kept, returned = [], [], [], []
memlab.start()
writer, run = SummaryWriter("tensorboard"), wandb.init(project="memory")
with mlflow.start_run():
    net = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(3):
        net(torch.randn(512, 1024, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(torch.zeros((step + 1) << 18, device="cuda"))
        truth.append([torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated(), torch.cuda.memory_reserved(),
                      torch.cuda.max_memory_reserved()])
        returned.append(memlab.log(step, [writer, run, mlflow]))
        torch.cuda.reset_peak_memory_stats()
    torch.zeros(1 << 20, device="cuda")
    memlab.log(logger=keep, prefix="own/")
    active = memlab.log()
writer.close()
run.finish()
json.dump([truth, returned, seen, torch.cuda.max_memory_allocated(), active], open("result", "w"))
"""


@START
def test_every_logger_has_the_figures_of_pytorch(memlab, preload):
    # GIVEN training that keeps more with each step
    # WHEN it logs to TensorBoard, W&B and MLflow
    (truth, returned, seen, peak, active), _ = run_tool(memlab, PLAIN, preload, env=OFFLINE)
    written = {
        "tensorboard": loggers.tensorboard(memlab.folder / "tensorboard"),
        "wandb": loggers.wandb(memlab.folder, "memlab/step")[0],
        "mlflow": loggers.mlflow(memlab.folder / "mlruns")[0],
    }
    # THEN each has the peak since the last call, and the allocated and reserved bytes, exactly
    for name, column in (("peak", 0), ("allocated", 1), ("reserved", 2), ("peak_reserved", 3)):
        expected = [(step, row[column]) for step, row in enumerate(truth)]
        assert [(step, figures[f"memlab/{name}"]) for step, figures in enumerate(returned)] == expected
        for logger, rows in written.items():
            assert rows[f"memlab/{name}"][:3] == expected, (logger, name)
    # AND the kept bytes, the rise of the peak, and the bytes of each category at the peak
    _, second, third = returned
    assert [second["memlab/kept"], third["memlab/kept"]] == [2 << 20, 3 << 20]
    assert third["memlab/growth"] == third["memlab/peak"] - second["memlab/allocated"]
    parameters = (1024 * 1024 + 1024 + 10 * 1024) * 4 + 512
    assert second["memlab/at_peak/parameter"] == parameters and second["memlab/at_peak/optimizer_state"] >= 2 * parameters
    assert sum(nbytes for name, nbytes in active.items() if "/at_peak/" in name) == active["memlab/used"]
    # AND a function receives the optimizer's steps, and without a logger the active runs do
    assert seen == [[3, peak]]
    assert written["wandb"]["memlab/peak"][3] == written["mlflow"]["memlab/peak"][3] == (3, active["memlab/peak"])


def test_objects_that_are_not_loggers_are_refused():
    # GIVEN an object that accepts no figures, WHEN it is passed as a logger, THEN the error names valid ones
    with pytest.raises(TypeError, match="given a int, which is no logger: give one of Lightning's"):
        package.log(0, 3)
    import mlflow

    with pytest.raises(TypeError, match=r"mlflow, in which no run is active: call mlflow.start_run\(\) first"):
        package.log(0, [mlflow])


LIGHTNING = (
    logged_trainings.LIGHTNING
    + """
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger

class Model(Small):
    def training_step(self, batch, index):
        self.kept.append(torch.zeros(1 << 18, device="cuda"))
        if FAILS and self.global_step == 5:
            torch.zeros(1 << 34, device="cuda")
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        torch.zeros(8 << 20, device="cuda")

loggers = [TensorBoardLogger("."), WandbLogger(project="memory", save_dir="."), MLFlowLogger(tracking_uri="file:./mlruns")]
trainer = pl.Trainer(
    max_epochs=2, accelerator="gpu", devices=1, logger=loggers, log_every_n_steps=2, accumulate_grad_batches=2,
    num_sanity_val_steps=0, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    callbacks=[MemlabCallback(), Truth()],
)
try:
    trainer.fit(Model(), data, data)
except torch.OutOfMemoryError:
    pass
json.dump(Truth.rows, open("result", "w"))
"""
)


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "out of memory"])
def test_lightnings_loggers_have_the_memory_beside_the_loss(memlab, fails):
    pytest.importorskip("lightning")
    # GIVEN training with Lightning's Trainer and three loggers
    # WHEN it has the callback, and ends, or runs out of memory
    program = LIGHTNING.replace("FAILS", str(fails))
    truth, _ = run_tool(memlab, program, preload=True, env=OFFLINE)
    in_mlflow, files = loggers.mlflow(memlab.folder / "mlruns")
    in_wandb, artifacts = loggers.wandb(memlab.folder, "trainer/global_step")
    (folder,) = memlab.folder.glob("lightning_logs/version_*")
    in_tensorboard = loggers.tensorboard(folder)
    # THEN every second step has PyTorch's peak of two steps, of four batches, in each logger, in the row of its loss
    assert len(truth) == (2 if fails else 6)
    for name, column in (("peak", 1), ("allocated", 2)):
        expected = [(row[0], row[column]) for row in truth]
        for rows in (in_tensorboard, in_wandb, in_mlflow):
            got = rows[f"memlab/{name}"]
            assert got[: len(truth)] == expected
            # AND an out-of-memory error has a separate row
            assert [step for step, _ in got[len(truth) :]] == ([5] if fails else [])
    assert [step for step, _ in in_tensorboard["loss"]] == [row[0] for row in truth]
    # AND the evaluation between the epochs counts in the next figures
    if not fails:
        assert in_mlflow["memlab/peak"][3][1] > 32 << 20 > in_mlflow["memlab/kept"][3][1]
    # AND the report is beside the logs, and with the loggers that accept files
    page = (folder / "memlab-report.html").read_text()
    assert "<strong>Growth</strong>" in page and ("Out of memory" in page) == fails
    assert files == ["memlab-report.html"]
    assert artifacts == [("memlab-report", "memlab-report.html")]


HUGGING_FACE = (
    logged_trainings.HUGGING_FACE
    + """
class FailingTruth(Truth):
    def on_step_end(self, args, state, control, **_):
        if FAILS and state.global_step == 5:
            torch.zeros(1 << 34, device="cuda")

    def on_log(self, *arguments, **more):
        super().on_log(*arguments, **more)
        json.dump(self.rows, open("result", "w"))

arguments = transformers.TrainingArguments(
    "out", per_device_train_batch_size=8, max_steps=6, report_to=["tensorboard", "wandb", "mlflow"], logging_steps=2,
    save_strategy="no", disable_tqdm=True,
)
callbacks = [MemlabCallback(), FailingTruth()]
transformers.Trainer(model=model, args=arguments, train_dataset=Texts(), callbacks=callbacks).train()
"""
)


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "out of memory"])
def test_hugging_faces_reports_have_the_memory_beside_the_loss(memlab, fails):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    # GIVEN training with Hugging Face's Trainer, which reports to three
    script = memlab.folder / "program.py"
    script.write_text(dedent(HUGGING_FACE.replace("FAILS", str(fails))))
    # WHEN it has the callback, and ends, or runs out of memory
    run = memlab.python(script, env={"PYTHONPATH": ROOT / "python"} | OFFLINE)
    assert (run.code != 0) == fails, run.errors
    truth = json.loads((memlab.folder / "result").read_text())
    in_mlflow, files = loggers.mlflow(memlab.folder / "mlruns")
    in_wandb, artifacts = loggers.wandb(memlab.folder, "train/global_step")
    (folder,) = memlab.folder.glob("out/runs/*")
    in_tensorboard = loggers.tensorboard(folder)
    # THEN each row of the loss has PyTorch's peak since the last one, in all three
    steps = [2, 4] if fails else [2, 4, 6]
    for name, column in (("peak", 1), ("allocated", 2)):
        expected = [(row[0], row[column]) for row in truth][: len(steps)]
        assert [step for step, _ in expected] == steps
        assert in_mlflow[f"memlab/{name}"] == expected
        assert in_wandb[f"train/memlab/{name}"] == in_tensorboard[f"train/memlab/{name}"] == expected
    # AND nothing more is printed
    assert "memlab/peak" not in run.output
    # AND the report is in the output folder, also after an exception, and with the loggers that accept files
    assert ("Out of memory" in (memlab.folder / "out" / "memlab-report.html").read_text()) == fails
    assert files == ["memlab-report.html"]
    assert artifacts == [("memlab-report", "memlab-report.html")]


def test_objects_deleted_by_a_callback_are_freed_while_the_trainer_logs():
    # GIVEN a Hugging Face callback that finds the reporting callbacks, and then drops an object
    transformers = pytest.importorskip("transformers")
    from memlab.integrations.transformers import _reporters
    from transformers.integrations import TensorBoardCallback
    from transformers.trainer_callback import CallbackHandler

    class Asking(transformers.TrainerCallback):
        def on_log(self, *_arguments, **_named):
            dropped = set()
            reference = weakref.ref(dropped)
            self.found = _reporters()
            del dropped
            self.kept = reference()

    asking, reporting = Asking(), object.__new__(TensorBoardCallback)
    reporting.on_log = lambda *_arguments, **_named: None
    handler = CallbackHandler([asking], None, None, None, None)
    handler.callbacks.append(reporting)
    handler.call_event("on_log", None, None, None)
    # THEN it has found them, and the object is freed
    assert asking.found == [reporting]
    assert asking.kept is None
