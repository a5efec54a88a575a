"""Threads that compute beside the loop."""

from __future__ import annotations

import threading

import pytest
import tiny_models

from model import Engine, loading
from model.threads import short_lived


def test_what_is_returned_and_what_is_raised_comes_from_a_thread_that_is_gone() -> None:
    thread = short_lived(threading.current_thread)
    assert thread is not threading.current_thread()
    assert not thread.is_alive()
    with pytest.raises(ZeroDivisionError):
        short_lived(lambda: 1 / 0)


def test_a_model_is_loaded_in_such_a_thread(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """Its helpers would stay with the main thread, and slow those of the loop down."""
    threads, load = [], loading.load

    def watched(*args, **options):
        threads.append(threading.current_thread())
        return load(*args, **options)

    tiny_models.model().save_pretrained(tmp_path)
    tiny_models.tokenizer().save_pretrained(tmp_path)
    monkeypatch.setattr(loading, "load", watched)
    with Engine.load(str(tmp_path)) as engine:
        assert not any(thread.is_alive() for thread in threads)
        assert engine.reference_model() is not None
    assert len(threads) == 2
