"""The `memlab` command of an installed package: this process becomes the program in the package's `bin` folder.

The program expects `libmemlab.so` in the same folder.
"""

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

PROGRAM = Path(__file__).resolve().parent / "bin" / "memlab"

# CPython ignores these signals. They would stay ignored through exec, also in the programs that memlab starts, which would
# then not end as they do without memlab.
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def main() -> NoReturn:
    """Becomes `memlab` with the same arguments, or exits with the reason and 127 (not found) or 126 (not startable)."""
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
