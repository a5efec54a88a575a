"""A forked process: it decodes on its own, and the one it was forked from goes on."""

from __future__ import annotations

import os
import pickle
import signal

import pytest
from engine_cases import Build, asked, drained

from model import Greedy


@pytest.mark.skipif(
    not hasattr(os, "fork"),
    reason="os.fork does not exist on this system, and only a forked process is tested here",
)
@pytest.mark.parametrize("threaded", [True, False])
def test_a_forked_process_decodes_on_its_own(build: Build, threaded: bool) -> None:
    """Although every lock was held, and the thread of the loop is not there."""
    engine = build(threaded=threaded)
    wanted = engine.generate(asked()).token_ids
    run = engine.stream(asked(max_new_tokens=900))
    if threaded:
        run.wait(3, timeout=5)
    reading, writing = os.pipe()
    with engine.loop._turning, engine.trace._lock, engine.runs._lock, run._news:
        child = os.fork()
    if not child:
        try:
            signal.alarm(20)
            assert run.finished.reason == "cancelled"
            assert engine.status().running == 0
            made = engine.generate(asked()).token_ids
            again = engine.stream(asked(max_new_tokens=3))
            assert len(drained(again)) == 5
            assert engine.run(again.handle).reweigh(1, Greedy()).index == 1
            engine.close()
            os.write(writing, pickle.dumps(made))
        except BaseException as error:
            os.write(writing, pickle.dumps(repr(error)))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    assert pickle.loads(told) == wanted
    run.cancel()
    assert drained(run)[-1].reason == "cancelled"  # here it went on
    assert engine.generate(asked()).token_ids == wanted
