"""The real application as a process of its own, as a person starts it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)


class RunningApp:
    """`python app.py` on a free port.

    Attributes:
        url: where the page is.
        log: what it has printed, a file.
    """

    def __init__(self, log: Path, *flags: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url, self.log = f"http://127.0.0.1:{port}/", log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "app.py", "--port", str(port), *flags],
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "GRADIO_ANALYTICS_ENABLED": "False"},
            )
        self._await(240)

    def _await(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            try:
                urllib.request.urlopen(self.url, timeout=5).close()
                return
            except OSError:
                time.sleep(0.3)
        self.stop()
        raise RuntimeError(f"the app did not start:\n{self.log.read_text()[-3000:]}")

    def client(self):
        from gradio_client import Client

        return Client(self.url, verbose=False)

    def idle(self, within_s: float) -> bool:
        """Whether nothing decodes any more after at most so many seconds."""
        client, end = self.client(), time.monotonic() + within_s
        while time.monotonic() < end:
            status = client.predict(api_name="/status")
            if status["running"] == status["waiting"] == 0:
                return True
            time.sleep(0.2)
        return False

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
