"""Keeps a program from changing anything outside its process: files, other processes, the network.

`memlab plan` applies this from the last recorded step on, so that the program does not replace the files of a real
training. It covers Python's own functions, in the program and in processes that it forks. It does not cover writes by C
libraries, memory mapped to a file, connections that are already open, and processes that multiprocessing spawns ("spawn").
"""

import builtins
import contextlib
import fcntl
import functools
import io
import os
import re
import shutil
import stat
import sys
import tempfile

# Files that are not results of the training.
CACHES = ("/dev/", "/proc/", "/.cache/", "/.triton/", "/.nv/", "torchinductor", "/pymp-")
# Functions that change files, replaced by functions that do nothing.
CHANGES = (
    "mkdir",
    "remove",
    "unlink",
    "rmdir",
    "rename",
    "replace",
    "symlink",
    "link",
    "truncate",
    "chmod",
    "chown",
    "utime",
)
# Audit events of the same functions. They also catch libraries that kept Python's original function.
CHANGED = (*(f"os.{name}" for name in (*CHANGES, "setxattr", "removexattr")), "shutil.rmtree", "shutil.move")
# Temporary files remove themselves with original functions that they kept.
REMOVALS = ("os.remove", "os.rmdir", "shutil.rmtree")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# Programs that kernel compilers run, also with names such as `x86_64-linux-gnu-gcc-13`.
COMPILER = re.compile(
    r"(.*-)?(cc|c\+\+|gcc|g\+\+|clang|clang\+\+|ld|as|ptxas|nvcc|cicc|fatbinary|nvlink|cuobjdump|nvdisasm|ldconfig)(-[\d.]+)?"
)
# Parts of torch.compile that Python runs as programs.
COMPILING = ("/torch/_inductor/", "/triton/")


class Outside:
    """Protects the outside of a recorded process. `scratch`: a folder that the program may write to."""

    def __init__(self, scratch):
        # memlab continues to write its trace.
        trace = os.environ.get("MEMLAB_OUTPUT")
        self.own = (scratch, os.path.dirname(os.path.abspath(trace)) + os.sep) if trace else (scratch,)
        self.pid = os.getpid()

    def leave_as_it_is(self):
        """Starts the protection."""
        sys.addaudithook(self.audit)
        opened = builtins.open

        @functools.wraps(opened)
        def open_(file, mode="r", *arguments, **options):
            writes = any(letter in mode for letter in "wax+")
            return opened(os.devnull if writes and self.is_kept(file) else file, mode, *arguments, **options)

        builtins.open = io.open = open_
        for name in CHANGES:
            setattr(os, name, self.unless_kept(getattr(os, name)))
        shutil.rmtree = self.unless_kept(shutil.rmtree)
        os.fsync = lambda _file: None
        for descriptor in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                self.close_to_writes(int(descriptor))

    def close_to_writes(self, descriptor):
        """Discards later writes to an open file. A file that is also open for reading refuses them."""
        mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        about = os.fstat(descriptor)
        if descriptor <= 2 or mode == os.O_RDONLY or not stat.S_ISREG(about.st_mode) or not self.is_kept(descriptor):
            return
        reads = mode == os.O_RDWR
        if reads and not about.st_size:
            return  # A lock, which would be released.
        instead = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY) if reads else os.open(os.devnull, os.O_WRONLY)
        if reads:
            os.lseek(instead, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(instead, descriptor, os.get_inheritable(descriptor))
        os.close(instead)

    def is_kept(self, path):
        if isinstance(path, int):
            path = _path_of(path)
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False
        path = os.path.abspath(os.fsdecode(path))
        return not path.startswith(self.own) and not any(part in path for part in CACHES)

    def unless_kept(self, change):
        @functools.wraps(change)
        def unless_kept(path, *arguments, **options):
            if not any(map(self.is_kept, _paths_of((path, *arguments)))):
                return change(path, *arguments, **options)
            return None

        return unless_kept

    def audit(self, event, arguments):
        """Refuses actions that reach outside the process. Raises PermissionError."""
        if event == "open":
            if isinstance(arguments[2], int) and arguments[2] & WRITING and self.is_kept(arguments[0]):
                raise PermissionError(f"memlab plan does not change {arguments[0]}")
        elif event in CHANGED:
            paths = _paths_of(arguments)
            if any(self.is_kept(each) and not (event in REMOVALS and _is_temporary(each)) for each in paths):
                raise PermissionError(f"memlab plan does not change {arguments[0]}")
        elif event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            if not _is_of_multiprocessing(arguments[-1]):
                raise PermissionError("memlab plan makes no connections")
        elif event in ("os.system", "pty.spawn", "os.exec", "os.posix_spawn", "subprocess.Popen"):
            program, more = arguments[0], arguments[1] if len(arguments) > 1 else ()
            if event in ("os.system", "pty.spawn") or not _compiles(program, more):
                raise PermissionError(f"memlab plan does not run {program}")
        elif event in ("os.kill", "os.killpg") and arguments[1] and not self.is_below(arguments[0], event):
            raise PermissionError(f"memlab plan sends no signal to process {arguments[0]}")

    def is_below(self, pid, event):
        """Returns True for this process and its descendants."""
        if event == "os.killpg" or pid <= 0:
            return False
        while pid > 1 and pid != self.pid:
            try:
                with open(f"/proc/{pid}/stat") as file:
                    pid = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                return True  # The process has ended, so the signal reaches nobody.
        return pid == self.pid


def _paths_of(arguments):
    """Returns the files among a function's arguments: the first, and the second unless it is a number such as a mode."""
    return [*arguments[:1], *(each for each in arguments[1:2] if not isinstance(each, int))]


def _path_of(descriptor):
    """Returns the path of an open file; None: it has no name."""
    try:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None
    return path if os.path.exists(path) else None


def _is_temporary(path):
    """Returns True for files named by `tempfile`."""
    path = _path_of(path) if isinstance(path, int) else path
    if path is None:
        return False
    folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))
    return name.startswith(tempfile.gettempprefix()) and (folder + os.sep).startswith(tempfile.gettempdir() + os.sep)


def _is_of_multiprocessing(address):
    """Returns True for sockets on which DataLoader processes hand over memory; None: the address of a connected one."""
    return address is None or (isinstance(address, (str, bytes)) and "/pymp-" in os.fsdecode(address))


def _compiles(program, arguments):
    """Returns True for compilers, and for a Python that compiles."""
    if program is None:
        program = next(iter(arguments), "")
    if COMPILER.fullmatch(os.path.basename(os.fsdecode(program))):
        return True
    parts = [os.fsdecode(each) for each in arguments if isinstance(each, (str, bytes, os.PathLike))]
    return os.fsdecode(program) == sys.executable and any(part in each for each in parts[1:4] for part in COMPILING)
