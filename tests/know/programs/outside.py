"""Tries to change things outside its process, as after the steps that `memlab plan` records. Prints the results.

outside.py FOLDER_OF_OUTSIDE_PY PID_OF_ANOTHER_PROCESS
"""

import importlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
outside = importlib.import_module("outside")

other = int(sys.argv[2])
temporary = Path(tempfile.mkdtemp())
files = {name: Path(name) for name in ("log", "data", "kept", "in_tmp")}
files["in_tmp"] = temporary / "in_tmp"
for path in files.values():
    path.write_text("weeks of work")
log, data = open("log", "a"), open("data", "r+")  # noqa: SIM115 (open as long as the process)
log.write(" and a line")  # Buffered: a later flush would write it.
data.read(5)
server = socket.create_server(("127.0.0.1", 0))
local = socket.socket(socket.AF_UNIX)
local.bind("socket")
local.listen()
raw_truncate, raw_remove = os.truncate, os.remove
outside.Outside(str(Path("scratch").absolute())).leave_as_it_is()
found = {}


def tried(name, action):
    try:
        found[name] = str(action())
    except (OSError, ValueError) as error:
        found[name] = type(error).__name__


def forked(action):
    child = os.fork()
    if child == 0:
        try:
            action()
        except PermissionError:
            os._exit(13)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def touch():
    Path("touched").touch()


def sent():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", server.getsockname())


def in_a_pool():
    with multiprocessing.get_context("fork").Pool(1) as pool, multiprocessing.get_context("fork").Manager() as manager:
        return pool.apply(abs, (-3,)) + len(manager.list([1]))


def ended_child():
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    child.terminate()
    child.join()
    return child.exitcode


python = sys.executable
tried("subprocess", lambda: subprocess.run([python, "-c", "open('touched', 'w')"], check=True))
tried("named as a compiler", lambda: subprocess.run(["./python-ld-touch"], check=True))
tried("posix_spawn", lambda: os.posix_spawn(python, [python, "-c", "open('touched', 'w')"], os.environ))
tried("fork and exec", lambda: forked(lambda: os.execv(python, [python, "-c", "open('touched', 'w')"])))
tried("system", lambda: os.system("touch touched"))
tried("tcp", lambda: socket.create_connection(server.getsockname()))
tried("unix", lambda: socket.socket(socket.AF_UNIX).connect("socket"))
tried("udp", sent)
tried("truncate", lambda: os.truncate(files["in_tmp"], 0))
tried("kept truncate", lambda: raw_truncate(files["in_tmp"], 0))
tried("kept remove", lambda: raw_remove("kept"))
tried("touch", touch)
tried("chmod", lambda: os.chmod("kept", 0))
tried("kill", lambda: os.kill(other, signal.SIGKILL))
tried("killpg", lambda: os.killpg(os.getpgid(other), signal.SIGKILL))
tried("asked", lambda: os.kill(other, 0))
tried("log", lambda: (log.write("more"), log.close()))
tried("data", lambda: data.read())
tried("data written", lambda: (data.seek(0), data.write("x"), data.flush()))
tried("compiler", lambda: subprocess.run(["gcc", "--version"], stdout=subprocess.DEVNULL, check=True).returncode)
tried("pool", in_a_pool)
tried("own child", ended_child)
print(json.dumps(found | {"left": {name: path.read_text() for name, path in files.items()}}), flush=True)
os._exit(0)
