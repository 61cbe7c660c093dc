"""Reads the output of loggers: TensorBoard, W&B offline and MLflow, as rows of (step, value) by name."""

import json
import struct
from collections import defaultdict

BLOCK = 32 << 10
HEADER = struct.Struct("<IHB")
WHOLE, LAST = 1, 4


def tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def wandb(folder, step):
    """History of the only offline run in a folder, by its step figure, and the names of its artifacts."""
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    rows, artifacts = defaultdict(list), []
    for record in wandb_records(path.read_bytes()):
        if record.WhichOneof("record_type") == "artifact":
            artifacts += [(record.artifact.type, entry.path) for entry in record.artifact.manifest.contents]
        items = record.history.item
        row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
        for name, value in row.items():
            rows[name].append((row.get(step), value))
    return rows, artifacts


def wandb_records(data):
    """Records of a run, in LevelDB's log format after 7 bytes of W&B's."""
    from wandb.proto import wandb_internal_pb2

    at, record = HEADER.size, b""
    while at + HEADER.size <= len(data):
        if BLOCK - at % BLOCK < HEADER.size:
            at += BLOCK - at % BLOCK
        _, length, kind = HEADER.unpack_from(data, at)
        record += data[at + HEADER.size : at + HEADER.size + length]
        at += HEADER.size + length
        if kind in (WHOLE, LAST):
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


def mlflow(folder):
    """Metrics of the only run in a file store, and the names of its artifacts."""
    (run,) = [path.parent for path in folder.glob("*/*/metrics")]
    rows = {}
    for path in (run / "metrics").rglob("*"):
        if path.is_file():
            values = [line.split()[:3] for line in path.read_text().splitlines()]
            rows[str(path.relative_to(run / "metrics"))] = [(int(step), float(value)) for _, value, step in values]
    return rows, sorted(path.name for path in (run / "artifacts").iterdir())
