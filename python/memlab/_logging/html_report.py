"""The report on this process's recording as a web page, which the `memlab` command writes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from memlab._command import program
from memlab._tools.messages import warn_once
from memlab.process_recording import trace_path

# Seconds. The trace of a day is read in a few; a training does not wait longer than this.
PATIENCE_S = 300


def write_report(path: Path, ranks: int = 1) -> Path | None:
    """Writes the report on the recording until now, and returns `path`. None: there is none; a line on stderr says why.

    Of several ranks it compares those whose traces are beside this one.
    """
    trace = trace_path()
    if trace is None:
        return None
    if ranks > 1 and not trace.startswith("/proc/"):
        trace = str(Path(trace).parent)
    # The command itself is not to be recorded.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [program(), "report", trace, "--html", path],
            capture_output=True,
            text=True,
            env=environment,
            timeout=PATIENCE_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        warn_once(f"{path}: the report cannot be written: {error}")
        return None
    if done.returncode:
        warn_once(f"{path}: the report cannot be written: {done.stderr.strip().removeprefix('memlab: ')}")
        return None
    return path
