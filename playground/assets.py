"""Files that the page loads from the app itself, so that it works without the internet."""

from __future__ import annotations

import gzip
from functools import cache
from importlib.resources import files
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from . import words
from .live_status import LiveStatus

PREFIX = "/playground-files"
_STATIC = Path(__file__).parent / "static"
_A_DAY = "public, max-age=86400"


@cache
def _plotly() -> bytes:
    """plotly.js as the plotly package ships it, compressed once: 1.4 MiB instead of 4.6."""
    script = files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    return gzip.compress(script, 6)


def plotly_js(request: Request) -> Response:
    compressed = _plotly()
    headers = {"Cache-Control": _A_DAY, "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(compressed, media_type="text/javascript", headers=headers)
    return Response(gzip.decompress(compressed), media_type="text/javascript", headers=headers)


def words_json(request: Request) -> Response:
    return JSONResponse(words.all_words(), headers={"Cache-Control": "no-cache"})


def routes(status: LiveStatus) -> list[BaseRoute]:
    """Where the page finds its files, and what the engine is doing."""
    return [
        Route(f"{PREFIX}/plotly.js", plotly_js),
        Route(f"{PREFIX}/words.json", words_json),
        status.route(f"{PREFIX}/status.json"),
        Mount(PREFIX, StaticFiles(directory=_STATIC)),
    ]
