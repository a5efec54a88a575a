"""Start the decoding playground: `python app.py`, then open the address that it prints."""

from __future__ import annotations

import argparse
import errno
import gc
import os
import socket
import sys
from collections.abc import Sequence

WRONG = 2  # exit code for everything the person who starts it can put right
LANGUAGES = ("en", "tr")
PRECISIONS = ("auto", "fp32", "bf16")


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags; each takes its default from the environment variable that its help names."""
    parser = argparse.ArgumentParser(description="A page on which a language model decodes, live.")

    def flag(name: str, text: str, default: str | None = None, **options) -> None:
        variable = "PLAYGROUND_" + name.upper()
        value = os.environ.get(variable) or default
        shown = f"; default {default}" if default else ""
        parser.add_argument(
            f"--{name}", default=value, help=f"{text} ({variable}{shown})", **options
        )

    flag("host", "address to listen on; 0.0.0.0 lets other machines in", metavar="ADDRESS")
    flag("port", "port to listen on; without it the first free one from 7860", metavar="NUMBER")
    flag("model", "catalogue id, hub name (owner/name), folder or .gguf file", metavar="MODEL")
    flag("device", "auto, cpu, cuda, cuda:1, mps", "auto", metavar="DEVICE")
    flag("precision", "auto, fp32 or bf16", "auto", metavar="PRECISION")
    flag(
        "memory",
        "MiB for the KV caches of everyone together; without it a part of the memory",
        metavar="MIB",
    )
    flag("queue", "how many texts may wait for a place", "64", metavar="NUMBER")
    flag("language", "en or tr for everyone; without it each reader's own", metavar="LANGUAGE")
    share = os.environ.get("PLAYGROUND_SHARE", "").lower() in ("1", "true", "yes", "on")
    parser.add_argument(
        "--share",
        action="store_true",
        default=share,
        help="also open a public link through gradio's servers (PLAYGROUND_SHARE)",
    )
    parser.add_argument(
        "--prefetch", metavar="MODEL", help="make a model ready for offline use, then exit"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="load the model, decode five tokens, print them with the speed, exit",
    )
    chosen = parser.parse_args(given)
    # A variable of the environment passes argparse by, so the values are checked here.
    for name, allowed in (("language", LANGUAGES), ("precision", PRECISIONS)):
        value = getattr(chosen, name)
        if value is not None and value not in allowed:
            parser.error(f"{name} is {value!r}; allowed is {', '.join(allowed)}")
    for name, most in (("port", 65_535), ("memory", 10_000_000), ("queue", 1_000_000)):
        setattr(chosen, name, _whole(parser, name, getattr(chosen, name), most))
    return chosen


def _whole(parser: argparse.ArgumentParser, name: str, value: str | None, most: int) -> int | None:
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 10 and 1 <= int(value) <= most):
        parser.error(f"{name} is {value!r}; allowed is a whole number from 1 to {most}")
    return int(value)


def main(given: Sequence[str] | None = None) -> int:
    chosen = arguments(given)
    serves = not (chosen.check or chosen.prefetch)
    if serves and chosen.port is not None and (trouble := _trouble(chosen)):
        return _wrong(trouble)
    # Next to nothing of what a start makes is garbage; looking for it took a quarter of the start.
    gc.disable()
    from model import FieldError, ModelUnavailable

    try:
        if chosen.prefetch:
            return _prefetch(chosen.prefetch)
        engine = _engine(chosen)
    except (FieldError, ModelUnavailable) as error:
        return _wrong(str(error))
    with engine:
        return _check(engine) if chosen.check else _serve(engine, chosen)


def _engine(chosen: argparse.Namespace):
    from model import Engine
    from model.weights import console_progress

    _terms(chosen.model)
    return Engine.load(
        chosen.model,
        progress=console_progress(),
        device=chosen.device,
        precision=chosen.precision,
        cache_bytes=None if chosen.memory is None else chosen.memory * 2**20,
        max_waiting=chosen.queue,
    )


def _prefetch(name: str) -> int:
    from model import loading
    from model.weights import console_progress

    _terms(name)
    loading.prefetch(name, progress=console_progress())
    print(f"{name} is ready and needs no network from now on.")
    return 0


def _terms(name: str | None) -> None:
    """The terms of a model that has some, before it is fetched for the first time."""
    from model import loading
    from model.catalogue import catalogue

    entry = catalogue().find(name) if name else None
    if entry is not None and entry.terms is not None and not loading.ready(name):
        print(f"{entry.title}: {entry.terms.text}".rstrip(), file=sys.stderr)


def _check(engine) -> int:
    """Five tokens, so that a machine can be tried without a browser."""
    from model import Greedy, Request, Step

    prompt = "The capital of France is"
    result = engine.generate(Request(prompt=prompt, strategy=Greedy(), max_new_tokens=5))
    print(f"{engine.name} on {engine.device}, {engine.precision}")
    print(prompt)
    for event in result.events:
        if isinstance(event, Step):
            print(f"  {event.label:<16} {event.raw_prob:6.1%}   {event.duration_s * 1000:6.1f} ms")
    print(f"{result.events[-1].tokens_per_s:.1f} tokens a second")
    return 0


def _serve(engine, chosen: argparse.Namespace) -> int:
    from model import Greedy, Request
    from playground.page import page

    # The first pass reads the weights from disk; better now than when somebody waits for it.
    engine.stream(Request(prompt="A", strategy=Greedy(), max_new_tokens=2))
    blocks, options = page(engine, chosen.language)
    try:
        _, here, everywhere = blocks.launch(
            server_name=chosen.host,
            server_port=chosen.port,
            share=chosen.share,
            quiet=True,
            prevent_thread_lock=True,
            **options,
        )
    except OSError as error:
        return _wrong(f"The page could not be served: {error}")
    gc.freeze()  # nor will it become garbage later
    gc.enable()
    print(f"Open {here} in your browser. Ctrl+C ends it.", flush=True)
    if everywhere:
        print(f"For everyone, for as long as this runs: {everywhere}", flush=True)
    blocks.block_thread()
    return 0


def _trouble(chosen: argparse.Namespace) -> str | None:
    """Why nothing could listen there; told before the model is loaded."""
    host = chosen.host or os.environ.get("GRADIO_SERVER_NAME") or "127.0.0.1"
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, chosen.port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return f"Port {chosen.port} is in use; choose another one with --port."
            return f"Nothing can listen at {host}, port {chosen.port}: {error.strerror or error}."
    return None


def _wrong(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return WRONG


if __name__ == "__main__":
    sys.exit(main())
