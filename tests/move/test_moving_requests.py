"""The control socket serves only its owner, and invalid requests are harmless."""

import json
import os
import random
import socket

import pytest
from moving import Console


def test_other_users_are_refused(memlab):
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    with Console(memlab) as program:
        program.do("a = allocate(PAGE)")
        assert program.ask("status")["ok"]

        def as_another():
            read, write = os.pipe()
            if (child := os.fork()) == 0:
                try:
                    os.setuid(65534)
                    with socket.socket(socket.AF_UNIX) as client:
                        client.connect(str(program.socket))
                        os.write(write, client.recv(4096))
                except OSError as error:
                    os.write(write, repr(error).encode())
                finally:
                    os._exit(0)
            os.close(write)
            os.waitpid(child, 0)
            return os.read(read, 4096).decode()

        # THEN other users cannot access the socket
        assert "PermissionError" in as_another()
        # AND if the folder is accessible, the process itself refuses
        program.runtime.chmod(0o755)
        program.socket.parent.chmod(0o755)
        program.socket.chmod(0o777)
        assert json.loads(as_another()) == {"ok": False, "error": "only the owner of the process may ask"}
        assert program.move["operation"] is None
        program.end()


def test_invalid_requests_are_harmless(memlab):
    dice = random.Random(8)
    right = [
        '{"command": "status"}',
        '{"command": "offload", "timeout_ms": 30000, "ranges": [[1, 2]]}',
        '{"command": "restore", "free_host": true}',
        '{"command": "checkpointed", "value": true}',
    ]
    wrong = [
        *(
            '""',
            "0",
            "null",
            "[]",
            "{}",
            '{"command": 1}',
            '{"command": null}',
            '{"command": ["status"]}',
            '{"command": ""}',
        ),
        *('{"command": "status"} x', '{"command": "status"', '{"command":', "\0", '{"command": "stat\0us"}'),
        *(f'{{"command": "offload", "timeout_ms": {value}}}' for value in ('"1"', "-1", "1.5", "1e400", "[]", "9" * 400)),
        *(f'{{"command": "offload", "ranges": {value}}}' for value in ("0", "[]", "[[1]]", "[[1, 2, 3]]", '[["1", 2]]')),
        *(f'{{"command": "offload", "ranges": [[{value}, 2]]}}' for value in ("-1", "1.5", "9" * 40, "null", "{}")),
        *(f'{{"command": "restore", "free_host": {value}}}' for value in ('"yes"', "1", "[]")),
        *(f'{{"command": "checkpointed"{value}}}' for value in ("", ', "value": null', ', "value": 1', ', "value": "true"')),
        '{"command": "limit"' + ', "bytes": -1}',
        "[" * 100000,
        '{"a":' * 100000,
        '{"command": "' + "x" * (1 << 20) + '"}',
        " " * (3 << 20),
        '{"command": "offload", "ranges": [' + "[1, 2]," * 200000,
        '{"command": "' + "é\\u0000\U0001f600" * 1000 + '"}',
    ]
    # GIVEN a busy program
    with Console(memlab) as program:
        program.do("stop, bad = threading.Event(), []", "later(0, lambda: worker(stop, bad))", "a = allocate(PAGE)")

        def refused(data):
            if (reply := program.exchange(data)) and not data.startswith(b"\n"):
                answer = json.loads(reply)
                assert answer["ok"] is False and 0 < len(answer["error"]) < 1000, (data[:100], reply[:1000])

        # WHEN it receives invalid requests
        for text in wrong:
            refused(text.encode(errors="replace") + b"\n")
        for number in range(2000):
            text = bytearray(dice.choice(right).encode())
            if number % 2:
                refused(dice.randbytes(dice.randrange(200)) + b"\xff\n")
            else:
                # Truncated; no request is valid when truncated.
                refused(bytes(text[: dice.randrange(1, len(text))]))
        # THEN nothing was done, and valid requests are answered
        move = program.move
        assert (move["state"], move["operation"]) == ("resident", None)
        assert len(json.loads(program.exchange(b'{"command":"nonsense"}\nmore\n'))["error"]) < 100
        program.cycle()
        program.do("check()", "stop.set()")
        assert program.do("ended(0)") and program.do("bad") == []
        program.end()
