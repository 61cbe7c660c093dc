"""Runs Python programs without importing PyTorch for each: the client of prefork_server.py."""

import atexit
import json
import os
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

SERVER = Path(__file__).parent / "prefork_server.py"


class Server:
    """A process that has imported PyTorch, started by `command` in `environment`."""

    def __init__(self, command, environment):
        self.channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            arguments = [*command, SERVER, str(other.fileno())]
            self.process = subprocess.Popen(arguments, env=environment, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL)
        atexit.register(self.close)

    def close(self):
        self.channel.close()
        self.process.wait()

    def run(self, arguments, directory, environment, timeout):
        """Exit code, standard output and standard error of `python ARGUMENT…`; `environment` adds to the server's."""
        request = {"arguments": arguments, "directory": str(directory), "environment": environment}
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors, open(os.devnull) as nothing:
            descriptors = [nothing.fileno(), output.fileno(), errors.fileno()]
            self.channel.settimeout(timeout)
            socket.send_fds(self.channel, [json.dumps(request).encode()], descriptors)
            child = int(self._answer())
            try:
                code = int(self._answer())
            except TimeoutError:
                os.kill(child, signal.SIGKILL)
                self.channel.settimeout(None)
                self._answer()
                raise subprocess.TimeoutExpired(arguments, timeout) from None
            output.seek(0)
            errors.seek(0)
            return code, output.read().decode(), errors.read().decode()

    def _answer(self):
        answer = self.channel.recv(64)
        if not answer:
            raise RuntimeError(f"the prefork server ended with {self.process.wait()}: see its standard error")
        return answer
