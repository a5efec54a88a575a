"""The heading: what decodes, and how exactly."""

from __future__ import annotations

import pytest
import tiny_models

from playground.page import _model


@pytest.mark.parametrize(
    ("precision", "lang", "said", "promise"),
    [
        ("fp32", "en", ">fp32<", "same to the last bit"),
        ("bf16", "en", ">bf16, rounded<", "may depend on who else is writing"),
        ("bf16", "tr", ">bf16, yuvarlamalı<", "bağlı olabilir"),
    ],
)
def test_a_faster_precision_is_labelled_as_such(precision, lang, said, promise) -> None:
    with tiny_models.engine(precision=precision, threaded=False) as engine:
        if precision == "fp32" and not engine.backbone.alone:
            said, promise = ">fp32, rounded<", "may depend on who else is writing"
        assert engine.status().exact is engine.backbone.alone
        heading = _model(engine, lang)
    assert said in heading
    assert promise in heading
