"""Packed linear layers: the same map, each row for itself, and nobody's model is changed."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import tiny_models
import torch
from engine_cases import asked
from tiny_models import ARCHITECTURES
from transformers.pytorch_utils import Conv1D

from model import Engine, packed_linear
from model.packed_linear import PackedLinear, pack

pytestmark = pytest.mark.skipif(
    not pack(torch.nn.Sequential(torch.nn.Linear(32, 32))),
    reason="this machine's matrix products don't keep rows apart",
)
BF16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
SHAPES = [(32, 64), (64, 300), (576, 1536), (1536, 576), (17, 5), (1, 3)]


def layers(inside: int, out: int) -> dict[str, torch.nn.Module]:
    conv = Conv1D(out, inside)
    torch.nn.init.normal_(conv.bias)
    return {
        "plain": torch.nn.Linear(inside, out, bias=False),
        "bias": torch.nn.Linear(inside, out),
        "Conv1D": conv,
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["plain", "bias", "Conv1D"])
def test_it_is_the_same_map(kind: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    layer = layers(*shape)[kind].to(dtype)
    holder = torch.nn.Sequential(copy.deepcopy(layer))
    if not pack(holder):  # a CPU without bf16 in its instructions: the layer stays as it is
        assert dtype == torch.bfloat16
        assert not BF16
        assert type(holder[0]) is type(layer)
        return
    (packed,) = holder
    assert type(packed) is PackedLinear
    assert (packed.in_features, packed.out_features) == shape
    x = torch.randn(2, 7, shape[0]).to(dtype)
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    with torch.inference_mode():
        torch.testing.assert_close(packed(x), layer(x), **close)
    weight = layer.weight.t() if kind == "Conv1D" else layer.weight
    assert torch.equal(packed.weight, weight)


@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
def test_a_row_does_not_depend_on_the_others(shape: tuple[int, int]) -> None:
    torch.manual_seed(2)
    holder, dice = torch.nn.Sequential(torch.nn.Linear(*shape)), random.Random(2)
    assert pack(holder)
    x = torch.randn(200, shape[0])
    with torch.inference_mode():
        whole = holder(x)
        for _ in range(60):
            some = dice.sample(range(200), dice.choice((2, 3, 4, 7, 16, 31, 32, 33, 130)))
            assert torch.equal(holder(x[some]), whole[some])


def test_layers_that_share_a_weight_share_it_still() -> None:
    one, other, third = (torch.nn.Linear(8, 8, bias=False) for _ in range(3))
    biased = torch.nn.Linear(8, 8)
    other.weight = biased.weight = one.weight
    holder = torch.nn.Sequential(one, other, third, biased)
    x = torch.randn(3, 8)
    wanted = biased(x)
    assert pack(holder)
    assert holder[0] is holder[1]
    assert holder[0] is not holder[2]
    torch.testing.assert_close(holder[3](x), wanted)


def test_a_model_with_tied_embeddings_writes_the_same() -> None:
    model = copy.deepcopy(tiny_models.model())
    model.config.tie_word_embeddings = True
    model.tie_weights()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    with Engine(model, tiny_models.tokenizer(), threaded=False) as engine:
        made = engine.generate(asked(num_candidates=3))
        ids = [*made.events[0].prompt_ids, *made.token_ids]
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0].softmax(-1)
    for step in made.events[1:-1]:
        at = len(ids) - len(made.token_ids) + step.index - 1
        assert step.raw_prob == pytest.approx(float(logits[at, step.token_id]), rel=1e-3)


@pytest.mark.parametrize(
    "other",
    [
        lambda: torch.nn.Linear(4, 4, device="meta"),
        lambda: torch.nn.Linear(4, 4, dtype=torch.float64),
        lambda: torch.nn.Linear(4, 4, dtype=torch.float16),
    ],
    ids=["another device", "double", "half"],
)
def test_elsewhere_nothing_is_packed(other: Any) -> None:
    holder = torch.nn.Sequential(other())
    assert not pack(holder)
    assert type(holder[0]) is torch.nn.Linear


@pytest.mark.parametrize("wrong", ["numbers", "company", "none"])
def test_kernels_that_do_otherwise_are_not_used(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried out; then rows are right, if not to the last bit in any company."""
    right = PackedLinear.forward

    def forward(layer: PackedLinear, x: torch.Tensor) -> torch.Tensor:
        if wrong == "none":
            raise RuntimeError("no such kernel")
        y = right(layer, x)
        return y * 1.001 if wrong == "numbers" else y * (1 + 1e-6 * (x.shape[0] % 2))

    monkeypatch.setattr(PackedLinear, "forward", forward)
    engine = tiny_models.engine(threaded=False)
    assert not engine.backbone.alone
    assert not any(isinstance(m, PackedLinear) for m in engine.backbone.model.modules())
    made = engine.generate(asked())
    monkeypatch.undo()
    assert made.token_ids == tiny_models.engine(threaded=False).generate(asked()).token_ids


def test_in_bf16_closeness_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for AMX take many rows at a time and don't keep them apart; they are far faster."""
    right = PackedLinear.forward
    mixing = lambda layer, x: right(layer, x) * (1 + 4e-3 * (x.shape[0] % 2))  # noqa: E731
    monkeypatch.setattr(PackedLinear, "forward", mixing)
    for dtype, done in ((torch.float32, False), (torch.bfloat16, BF16)):
        assert pack(torch.nn.Sequential(torch.nn.Linear(64, 96)).to(dtype)) is done


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_model_handed_in_stays_as_it_is(architecture: str, precision: str) -> None:
    model = copy.deepcopy(tiny_models.model(architecture))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    kinds = [type(module) for module in model.modules()]
    attention = model.config._attn_implementation
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.inference_mode():
        logits = model(ids).logits
    with Engine(model, tiny_models.tokenizer(), precision=precision, threaded=False) as engine:
        assert engine.backbone.packs
        engine.generate(asked(max_new_tokens=3))
        for whole in (model, engine.reference_model()):
            assert [type(module) for module in whole.modules()] == kinds
            assert whole.config._attn_implementation == attention
            assert whole.dtype == torch.float32
            for name, tensor in whole.state_dict().items():
                assert torch.equal(tensor, before[name])
            with torch.inference_mode():
                assert torch.equal(whole(ids).logits, logits)
        assert engine.reference_model() is model


def test_weights_are_not_held_twice() -> None:
    """Packed ones take the place of the engine's own; the ones handed in are the caller's."""
    engine = tiny_models.engine(threaded=False)
    plain = [m for m in engine.backbone.model.modules() if type(m) in (torch.nn.Linear, Conv1D)]
    assert engine.backbone.alone
    assert plain == []
    names = [name for name, _ in engine.backbone.model.named_parameters()]
    assert all("embed" in name or "norm" in name for name in names)
    assert packed_linear.LEAST == 2
