"""Packed linear layers: weights laid out once for oneDNN, as inference compilers do.

On x86 CPUs `torch.nn.functional.linear` reads a weight matrix in the order in which it is stored,
which is slow for few rows, and picks another kernel for one row than for two or for many, so that a
row's last bits depend on how many others are computed with it. With the weights laid out for
oneDNN's matrix kernels both are gone: each row is the same in any company of at least one other.
"""

from __future__ import annotations

import logging
import platform

import torch
from transformers.pytorch_utils import Conv1D

log = logging.getLogger(__name__)
ROWS = 32  # what the layout is made for; it serves any number
LEAST = 2  # one row alone may take another kernel
TRIED = (2, 3, 5, 8, 17, 33, 64, 100)  # row counts that are compared


class PackedLinear(torch.nn.Module):
    """The same map as a `Linear` (or GPT-2's `Conv1D`), computed with a laid-out weight.

    *Shape:* (…, in) → (…, out)
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """*Shape:* (out, in), (out,)"""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        dense = weight.detach().contiguous()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(dense, ROWS)
        self.bias = None if bias is None else bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")

    @property
    def weight(self) -> torch.Tensor:
        """The weight as it was. *Shape:* (out, in)"""
        return self.packed.to_dense()


def pack(model: torch.nn.Module) -> bool:
    """Replace the linear layers of a model on the CPU, where that is known to work.

    It is tried out: they have to compute what the plain ones do, and in fp32 every row for itself,
    to the last bit. In bf16, which rounds anyway, closeness is enough (kernels for AMX, which take
    16 rows at a time, don't keep rows apart).

    Returns:
        Whether it was done; in fp32 rows don't depend on others then.
    """
    found = [
        (parent, name, layer)
        for parent in model.modules()
        for name, layer in parent.named_children()
        if type(layer) in (torch.nn.Linear, Conv1D)
    ]
    if not _here(model):
        return False
    made: dict[tuple[int, int], PackedLinear] = {}  # one for layers that share what they are of
    tried: set[torch.Size] = set()
    for _, _, layer in found:
        if layer.weight.shape not in tried:
            packed = _packed(layer)
            if packed is None:
                return False
            made[id(layer.weight), id(layer.bias)] = packed
            tried.add(layer.weight.shape)
    for parent, name, layer in found:
        key = id(layer.weight), id(layer.bias)
        if key not in made:
            made[key] = PackedLinear(*_matrix(layer))
        setattr(parent, name, made[key])
    return True


def _here(model: torch.nn.Module) -> bool:
    tensor = next(model.parameters(), None)
    return (
        tensor is not None
        and tensor.device.type == "cpu"
        and tensor.dtype in (torch.float32, torch.bfloat16)
        and platform.machine().lower() in ("x86_64", "amd64")
        and torch.backends.mkldnn.is_available()
        and (tensor.dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def _matrix(layer: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor | None]:
    weight = layer.weight.t() if isinstance(layer, Conv1D) else layer.weight
    return weight, layer.bias


def _packed(layer: torch.nn.Module) -> PackedLinear | None:
    """The layer packed, if that computes what the plain one does as well as its type asks."""
    try:
        packed = PackedLinear(*_matrix(layer))
        return packed if _alike(layer, packed) else None
    except (RuntimeError, AttributeError) as error:
        # These operators are torch's own business, made for its compiler: a build without oneDNN
        # does not have them, another version may name them otherwise, and some CPUs refuse a shape
        # or a type. Plain layers do the same work, so that is no reason not to start.
        log.info("linear layers stay as they are: %s", error)
        return None


@torch.inference_mode()
def _alike(layer: torch.nn.Module, packed: PackedLinear) -> bool:
    states = torch.Generator().manual_seed(0)
    x = torch.randn((max(TRIED), packed.in_features), generator=states).to(layer.weight.dtype)
    whole = packed(x)
    exact = x.dtype == torch.float32
    close = 1e-4 if exact else 2e-2
    scale = whole.abs().max().item()
    if not torch.allclose(whole, layer(x), rtol=close, atol=close * scale):
        return False
    return not exact or all(torch.equal(packed(x[:n]), whole[:n]) for n in TRIED)
