"""The `memlab` command of the package. This process becomes the program in the package's `bin` folder or, in a source tree,
the one that `make` builds.

The program expects `libmemlab.so` in the same folder.
"""

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

_PACKAGE = Path(__file__).resolve().parent
INSTALLED, BUILT = _PACKAGE / "bin" / "memlab", _PACKAGE.parent.parent / "target" / "release" / "memlab"

# CPython ignores these signals. They would stay ignored after exec, also in programs that memlab starts, and these would
# then end differently than without memlab.
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def program() -> Path:
    """The path of the command, even if it does not exist yet."""
    return BUILT if BUILT.exists() and not INSTALLED.exists() else INSTALLED


def main() -> NoReturn:
    """Becomes `memlab` with the same arguments, or exits with the reason and 127 (not found) or 126 (not startable)."""
    for number in IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    path = program()
    try:
        os.execv(path, ["memlab", *sys.argv[1:]])
    except OSError as error:
        if path.exists():
            sys.stderr.write(
                f"memlab: cannot start {path}: {error.strerror}: memlab needs Linux on x86-64 with glibc, and a file system "
                "that allows programs (no noexec)\n"
            )
            sys.exit(126)
        sys.stderr.write(f"memlab: {path} is missing: run `make` in a source tree; elsewhere install memlab again\n")
        sys.exit(127)
