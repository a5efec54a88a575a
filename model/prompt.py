"""From what a person typed to the exact tokens that the model gets."""

from __future__ import annotations

from typing import Any

from jinja2 import TemplateError

from .errors import FieldError
from .request import Request


def prompt_ids(tokenizer: Any, request: Request, start_id: int | None) -> tuple[int, ...]:
    """The tokens of a request's prompt, as transformers makes them.

    Args:
        tokenizer: of the model.
        request: its prompt, chat and system are read.
        start_id: where an empty prompt starts from.

    Raises:
        FieldError: the model has no chat template, or nothing to start an empty prompt from.
    """
    if request.token_ids is not None:
        ids = list(request.token_ids)
    elif request.chat:
        ids = _chat_ids(tokenizer, request)
    else:
        ids = list(tokenizer(request.prompt)["input_ids"])
    if not ids:
        if start_id is None:
            allowed = "a text, since this model has no start token"
            raise FieldError("prompt", request.prompt, allowed, "no_start")
        ids = [start_id]
    return tuple(int(i) for i in ids)


def _chat_ids(tokenizer: Any, request: Request) -> list[int]:
    if not getattr(tokenizer, "chat_template", None):
        allowed = "false for this model, which has no chat template"
        raise FieldError("chat", True, allowed, "no_chat")
    messages = [{"role": "user", "content": request.prompt}]
    if request.system is not None:
        messages.insert(0, {"role": "system", "content": request.system})
    try:
        encoded = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=True
        )
    except TemplateError as error:  # some templates know no system message, and say so
        field = "chat" if request.system is None else "system"
        allowed = f"what this model's chat template takes; it says: {error}"
        raise FieldError(field, request.system or True, allowed, "chat_refused") from error
    return list(encoded["input_ids"])


def start_id(model: Any, tokenizer: Any) -> int | None:
    """The token from which an empty prompt starts: the start token, else the end token."""
    sources = (model.generation_config, model.config, tokenizer)
    for name in ("bos_token_id", "eos_token_id"):
        for source in sources:
            value = getattr(source, name, None)
            if isinstance(value, (list, tuple)):
                value = value[0] if value else None
            if value is not None:
                return int(value)
    return None


def end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The model's end tokens; its generation config may name several."""
    for source in (model.generation_config, model.config, tokenizer):
        value = getattr(source, "eos_token_id", None)
        if value is not None:
            return frozenset(value if isinstance(value, (list, tuple)) else (value,))
    return frozenset()
