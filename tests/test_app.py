"""`python app.py`: what its flags and variables do, and what it says when something is wrong."""

from __future__ import annotations

import gc
import os
import re
import socket
import subprocess
import sys

import pytest
from running_app import ROOT

import app


def start(*flags: str, **variables: str) -> subprocess.CompletedProcess:
    """Run it to its end, which for a page that is served would never come."""
    return subprocess.run(
        [sys.executable, "app.py", *flags],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.mark.parametrize(
    ("flags", "variables", "said"),
    [
        (["--port", "99999"], {}, "a whole number from 1 to 65535"),
        (["--port", "http"], {}, "'http'"),
        (["--memory", "-1"], {}, "a whole number from 1 to 10000000"),
        ([], {"PLAYGROUND_QUEUE": "0"}, "queue is '0'"),
        ([], {"PLAYGROUND_PORT": "0"}, "a whole number from 1 to 65535"),
        (["--language", "de"], {}, "en, tr"),
        ([], {"PLAYGROUND_PRECISION": "fp64"}, "auto, fp32, bf16"),
        (["--model", "no-such-model"], {}, "smollm2-135m-instruct"),
        (["--model", "/no/such/folder"], {}, "no such folder or file"),
        (["--prefetch", "no-such-model"], {}, "no-such-model"),
        (["--check", "--device", "tpu"], {}, "tpu"),
        (["--host", "no-such-host.invalid", "--port", "7999"], {}, "no-such-host.invalid"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence_with_exit_code_2(
    flags, variables, said, monkeypatch, capfd
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    try:
        code = app.main(flags)
    except SystemExit as end:  # argparse ends the program itself
        code = end.code
    finally:
        gc.enable()
    told = capfd.readouterr().err
    assert code == 2
    assert said in told
    assert "Traceback" not in told


def test_a_busy_port_is_told_before_anything_is_loaded():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = start("--port", str(port))
    assert done.returncode == 2
    assert done.stderr.strip() == f"Port {port} is in use; choose another one with --port."


@pytest.mark.default_model
def test_check_decodes_five_tokens_with_their_probabilities_and_the_speed():
    done = start("--check")
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^  (\S+)\s+([\d.]+)%\s+[\d.]+ ms$", done.stdout, re.MULTILINE)
    assert len(rows) == 5
    assert rows[0][0] == "·Paris"
    assert re.search(r"^[\d.]+ tokens a second$", done.stdout, re.MULTILINE)


def test_a_start_writes_no_type_stubs():
    """Gradio would parse the source of every component for them, half of its import."""
    code = (
        "import ast, inspect\n"
        "def no(*_): raise AssertionError('a stub was made')\n"
        "ast.get_source_segment = no\n"
        "import playground.page, gradio\n"
        "assert inspect.getfile(gradio.Textbox)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
