"""The `memlab` command of an installed package: the program that lies in the package takes this process's place.

It lies in a folder with `libmemlab.so`, beside which it looks for that library.
"""

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

PROGRAM = Path(__file__).resolve().parent / "bin" / "memlab"

# What CPython ignores from its start on. An ignored signal stays so through exec, and memlab would hand it down to the
# programs it starts, which would no longer end as they do without it.
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def main() -> NoReturn:
    """Becomes `memlab`, with this process's arguments; ends it, where that is not possible, with words and 127 or 126."""
    for number in IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(PROGRAM, ["memlab", *sys.argv[1:]])
    except OSError as error:
        if PROGRAM.exists():
            sys.stderr.write(
                f"memlab: {PROGRAM} cannot be started: {error.strerror}: memlab runs on Linux on x86-64 with glibc, "
                "from file systems that allow programs (no noexec)\n"
            )
            sys.exit(126)
        sys.stderr.write(
            f"memlab: {PROGRAM} is missing: in a source tree use target/release/memlab, which `make` builds; elsewhere "
            "install memlab again\n"
        )
        sys.exit(127)
