"""One GGUF file into a transformers folder with its exact fp32 values. A program of its own:

    python -P conversion.py FILE.gguf FOLDER

transformers reads a GGUF in 20 to 60 s; the folder written here loads in half a second. It runs
apart from the program that wants the model because it takes three times the memory of the result,
because a damaged file may take the whole process down, and because it can be ended at any moment.
It imports nothing of this project (hence -P, and no relative import).

Written to stdout: one line a milestone, the fraction done ("0.6"). Exit code 0, or 1 with the
reason as the last line of stderr. It also ends when its stdin is closed: nobody waits any more.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

# The tokens at which a text may end, by their keys in the file. Gemma 3's base model names <eos>
# only, and rightly: it has <end_of_turn> in its vocabulary, but gives it a probability of 1e-16
# even where a turn ends, since no chat was in its training. The instruct files name theirs as eot.
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")


def convert(gguf: Path, folder: Path, header: dict[str, Any]) -> None:
    """Writes weights, config, generation config, tokenizer and chat template into `folder`.

    Args:
        gguf: the file.
        folder: an existing, empty folder.
        header: the file's metadata.

    Raises:
        ValueError: the file lacks weights that the model needs.
        Exception: whatever transformers raises for a file that it can't read.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    place = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    _milestone(0.1)
    model, report = AutoModelForCausalLM.from_pretrained(
        **place,
        dtype=torch.float32,
        quantization_config=GgufConfig(gguf_file=gguf.name, dequantize=True),
        output_loading_info=True,
        local_files_only=True,
    )
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"the file lacks {len(missing)} weights, among them {missing[0]}")
    _milestone(0.6)
    tokenizer = AutoTokenizer.from_pretrained(**place, local_files_only=True)
    _mend(tokenizer, header.get("tokenizer.ggml.pre"))
    tokenizer.save_pretrained(folder)
    _milestone(0.9)

    config, generation = model.config, model.generation_config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the values written are plain floats
    ends = [header[key] for end in _ENDS if (key := f"tokenizer.ggml.{end}") in header]
    ends = list(dict.fromkeys(ends))
    if ends:
        config.eos_token_id = generation.eos_token_id = ends if len(ends) > 1 else ends[0]
    # Else transformers would derive it anew from the config at every load.
    generation._from_model_config = False
    config.save_pretrained(folder)
    generation.save_pretrained(folder)
    tied = set(model.all_tied_weights_keys)
    weights = {
        name: value.contiguous() for name, value in model.state_dict().items() if name not in tied
    }
    target = folder / "model.safetensors"
    save_file(weights, target, metadata={"format": "pt"})
    # save_file lets the owner alone read it; a cache may serve a whole classroom.
    target.chmod((folder / "config.json").stat().st_mode)
    _milestone(1.0)


def _mend(tokenizer: Any, scheme: str | None) -> None:
    """Sets the pre-tokenizer that transformers leaves out for `scheme`, the file's `ggml.pre`.

    SmolLM's tokenizer splits every digit off before anything else. transformers knows no rule for
    "smollm" and takes GPT-2's, under which "x   5" becomes x, two spaces, a space and 5 instead of
    x, three spaces and 5: tokens that the model has never met in that order.
    """
    from tokenizers import pre_tokenizers

    if scheme == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )


def _milestone(fraction: float) -> None:
    print(fraction, flush=True)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    gguf, folder = map(Path, sys.argv[1:3])
    header = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        convert(gguf, folder, header)
    except Exception as error:
        # One line; a traceback tells a person with a damaged file nothing.
        print(f"{type(error).__name__}: {error}".replace("\n", " "), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)  # without waiting for the thread, or for torch to tidy up


if __name__ == "__main__":
    main()
