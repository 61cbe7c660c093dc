"""`runtime_env` for Ray: each worker that uses CUDA writes a trace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from memlab.process_recording import library_path

__all__ = ["runtime_env"]


def runtime_env(output: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns a ``runtime_env`` that records Ray's workers, for `ray.init`, or for single tasks and actors.

        ray.init(runtime_env=memlab.integrations.ray.runtime_env("traces"))

    Args:
        output: the folder of the traces, which is created; on several nodes a shared folder. Each worker's trace is
            ``HOST-RANK-PID.jsonl``.

    memlab must be installed at the same place on all nodes. Libraries already in ``LD_PRELOAD`` are preloaded too.

    Raises:
        RuntimeError: memlab's library is missing.
        OSError: the folder cannot be created.

    >>> import memlab.integrations.ray, tempfile
    >>> sorted(memlab.integrations.ray.runtime_env(tempfile.mkdtemp())["env_vars"])
    ['LD_PRELOAD', 'MEMLAB_OUTPUT']
    """
    library = library_path()
    if library is None:
        raise RuntimeError("libmemlab.so is missing: install memlab again, or run `make` in a source tree")
    folder = Path(output).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    preloaded = [str(library), *filter(None, [os.environ.get("LD_PRELOAD")])]
    # A percent sign in the folder's name is not a placeholder of memlab.
    name = str(folder).replace("%", "%%")
    return {"env_vars": {"LD_PRELOAD": ":".join(preloaded), "MEMLAB_OUTPUT": f"{name}/%h-%r-%p.jsonl"}}
