"""The endpoints, called by a real client on the running app."""

from __future__ import annotations

import math
import time

import pytest
import tiny_models
from gradio_client import Client
from gradio_client.exceptions import AppError

from model import Greedy, Request
from model.kv_cache import capacity
from playground import api

pytestmark = pytest.mark.default_model


@pytest.fixture(scope="module")
def client(app) -> Client:
    return app.client()


def complaint(client: Client, *args, api_name: str, **kwargs) -> str:
    with pytest.raises(AppError) as caught:
        client.predict(*args, api_name=api_name, **kwargs)
    return str(caught.value)


def test_generate_streams_started_then_one_step_per_token_then_finished(client):
    job = client.submit(
        "The capital of France is", strategy="greedy", max_new_tokens=5, api_name="/generate"
    )
    job.result(timeout=120)
    started, *steps, finished = job.outputs()
    assert started["event"] == "started"
    assert [step["event"] for step in steps] == ["step"] * 5
    assert [step["index"] for step in steps] == list(range(5))
    assert finished["event"] == "finished"
    assert finished["reason"] == "length"
    assert finished["text"] == "".join(step["text"] for step in steps)
    for step in steps:
        assert step["choice"] == step["token_id"] == step["candidates"][0]["token_id"]
        assert math.isclose(step["raw_prob"], step["final_prob"])


def test_the_reported_seed_reproduces_the_text(client):
    def text(**seed):
        job = client.submit("Once upon a time", max_new_tokens=8, **seed, api_name="/generate")
        job.result(timeout=120)
        return job.outputs()[0]["seed"], job.outputs()[-1]["text"]

    seed, first = text()
    assert text(seed=seed) == (seed, first)


def test_next_token_gives_the_distribution_under_the_settings(client):
    step = client.predict(
        "The Moon goes around the", top_k=3, num_candidates=10, seed=1, api_name="/next_token"
    )
    kept = [c for c in step["candidates"] if c["cut_by"] is None]
    assert step["kept"] == len(kept) == 3
    assert {c["cut_by"] for c in step["candidates"][3:]} == {"top_k"}
    assert math.isclose(sum(c["final_prob"] for c in kept), 1)
    assert step["token_id"] in {c["token_id"] for c in kept}


def test_tokenize_shows_the_exact_tokens_special_ones_included(client):
    plain = client.predict("Hello  world", api_name="/tokenize")
    assert "".join(token["text"] for token in plain) == "Hello  world"
    assert not any(token["special"] for token in plain)
    chat = client.predict("Hello", chat=True, system="Be brief.", api_name="/tokenize")
    assert chat[0]["special"]
    assert "Be brief." in "".join(token["text"] for token in chat)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("temperature", -1, "Temperature"),
        ("temperature", 1e9, "0 to 100"),
        ("temperature", "hot", "hot"),
        ("top_k", -5, "Top-k"),
        ("top_k", 2.5, "whole number"),
        ("top_p", 1.5, "0 to 1"),
        ("seed", -3, "Seed"),
        ("max_new_tokens", 0, "Length"),
        ("num_candidates", 0, "Candidates"),
        ("strategy", "magic", "sampling, greedy"),
        ("stop", [""], "Stop strings"),
        ("chat", "yes", "Chat"),
    ],
)
def test_a_bad_value_comes_back_with_field_value_and_range(client, field, value, said):
    text = complaint(client, "Hello", **{field: value}, api_name="/generate")
    assert said in text
    assert "Traceback" not in text
    assert "/" not in text.split("Allowed")[0]


def test_complaints_speak_turkish_on_demand(client):
    text = complaint(client, "Hello", top_p=3, language="tr", api_name="/next_token")
    assert "Çekirdek örneklemesi (top-p)" in text
    assert "0 ile 1 arası" in text


def test_a_prompt_without_room_says_how_many_tokens_it_has_and_how_many_fit(client):
    text = complaint(client, "hello " * 16_000, api_name="/next_token")
    assert "8,191" in text
    assert "16,00" in text


def test_a_bad_call_harms_nobody(client):
    complaint(client, "Hello", top_k=-1, api_name="/generate")
    assert client.predict("Hello", api_name="/next_token")["candidates"]


def test_who_waits_hears_the_place_again_and_again_and_leaves_none_behind(monkeypatch):
    """Only so is a caller noticed who has gone."""
    monkeypatch.setattr(api, "PATIENCE", 0.05)
    with tiny_models.engine(cache_bytes=capacity(64) * 256) as engine:
        first = engine.stream(Request(prompt="x", strategy=Greedy(), max_new_tokens=60))
        first.pace(0.001)  # has the only place, and keeps it
        first.wait(1, timeout=5)
        while engine.status().running == 0:
            time.sleep(0.01)
        heard = api._generate(engine)("the cat", max_new_tokens=5)
        assert next(heard)["event"] == "started"
        assert [next(heard) for _ in range(3)] == [{"event": "waiting", "place": 1}] * 3
        assert engine.status().waiting == 1
        heard.close()
        until = time.perf_counter() + 5
        while engine.status().waiting and time.perf_counter() < until:
            time.sleep(0.01)
        assert engine.status().waiting == 0
        first.cancel()
