"""Controls a headless Chromium over its debugging pipe: opens pages, evaluates scripts, records errors and requests.

The protocol is NUL-separated JSON on two pipes, so no driver is needed.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPLY_TIMEOUT = 60  # seconds


def find_chromium():
    """The browser and its environment, or None: MEMLAB_CHROMIUM, the one of tests/chromium.sh, or the system's."""
    asked = os.environ.get("MEMLAB_CHROMIUM")
    if asked:
        return asked, {}
    made = ROOT / ".venv" / "chromium"
    if (made / "chromium").exists():
        return made / "chromium", {"LD_LIBRARY_PATH": made / "lib", "FONTCONFIG_FILE": made / "fonts.conf"}
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    return next(((found, {}) for found in map(shutil.which, names) if found), None)


class Browser:
    """A running Chromium; use as a context manager."""

    def __init__(self):
        found = find_chromium()
        assert found, "no Chromium: run 'tests/chromium.sh .venv'"
        program, environment = found
        self.profile = tempfile.TemporaryDirectory(prefix="memlab-chromium-", ignore_cleanup_errors=True)
        its_input, self.commands = os.pipe()
        self.answers, its_output = os.pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        options += ["--no-first-run", "--disable-background-networking", "--disable-component-update"]
        options += [f"--user-data-dir={self.profile.name}", "--remote-debugging-pipe", "about:blank"]
        # Chromium reads from descriptor 3 and writes to descriptor 4.
        plumbing = f'exec "$@" 3<&{its_input} 4>&{its_output}'
        self.process = subprocess.Popen(
            ["bash", "-c", plumbing, "bash", str(program), *options],
            env=os.environ | {name: str(value) for name, value in environment.items()} | {"HOME": self.profile.name},
            pass_fds=(its_input, its_output),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(its_input)
        os.close(its_output)
        self.unread = b""
        self.number = 0
        self.pages = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.commands)
        os.close(self.answers)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.profile.cleanup()

    def message(self):
        """The next message of the browser."""
        deadline = time.monotonic() + REPLY_TIMEOUT
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.answers], [], [], max(0, deadline - time.monotonic()))
            data = os.read(self.answers, 1 << 20) if ready else b""
            assert data, "Chromium ended" if ready else "Chromium does not answer"
            self.unread += data
        message, self.unread = self.unread.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, session=None, **parameters):
        """Sends a command and waits for its result; passes events that arrive meanwhile to their page."""
        self.number += 1
        command = {"id": self.number, "method": method, "params": parameters}
        if session:
            command["sessionId"] = session
        data = json.dumps(command).encode() + b"\0"
        while data:
            data = data[os.write(self.commands, data) :]
        while True:
            message = self.message()
            if message.get("id") == self.number:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            self.note(message)

    def note(self, message):
        page = self.pages.get(message.get("sessionId"))
        if page:
            page.note(message["method"], message["params"])

    def open(self, path, width=1280, height=900, dark=False):
        """Opens a file, or an http address, in a window of this size."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.ask(f"{domain}.enable")
        page.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.ask("Emulation.setEmulatedMedia", features=[scheme])
        page.ask("Page.navigate", url=path if str(path).startswith("http") else Path(path).resolve().as_uri())
        while not page.loaded:
            self.note(self.message())
        return page


class Page:
    """An open page."""

    def __init__(self, browser, session):
        self.browser = browser
        self.session = session
        self.loaded = False
        self.complaints = []
        self.requests = []

    def ask(self, method, **parameters):
        return self.browser.ask(method, self.session, **parameters)

    def note(self, method, event):
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(event["exceptionDetails"])
        elif method == "Log.entryAdded" or (method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning")):
            self.complaints.append(event)

    def resize(self, width, height=900):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def evaluate(self, script):
        """The value of a script in the page."""
        result = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, key, **more):
        """Presses a key: a character or a name such as Enter."""
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        code = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "Tab": 9}.get(key, 0)
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **(text | more))

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def drag(self, start, end, y):
        """Presses the left button at `start`, moves to `end` at the same height, and releases it there."""
        for kind, x in (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def hover(self, x, y):
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path, whole=True):
        """Writes a PNG of the whole page, or of its visible part."""
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        Path(path).write_bytes(base64.b64decode(shot["data"]))
