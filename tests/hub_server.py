"""A small Hugging Face hub on this machine: enough of its HTTP to look up and fetch models."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "a" * 40


class HubServer(ThreadingHTTPServer):
    """Serves `repos` ("owner/name" to file name to content) and notes every file it is asked for.

    Attributes:
        gated: repositories that refuse everybody.
        asked: paths of all requests, in order.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.asked: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def do_HEAD(self) -> None:
        self._reply(with_body=False)

    def do_GET(self) -> None:
        self._reply(with_body=True)

    def _reply(self, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        self.server.asked.append(path)
        parts = path.split("/")
        repo = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        if repo in self.server.gated:
            return self._send(403, b"{}", with_body, {"X-Error-Code": "GatedRepo"})
        files = self.server.repos.get(repo)
        if files is None:
            return self._send(404, b"{}", with_body, {"X-Error-Code": "RepoNotFound"})
        if parts[0] == "api":
            listing = "tree" in parts[4:5]
            content = [
                {
                    "path": name,
                    "rfilename": name,
                    "type": "file",
                    "size": len(data),
                    "oid": _oid(data),
                }
                for name, data in files.items()
            ]
            answer = content if listing else {"id": repo, "sha": COMMIT, "siblings": content}
            return self._send(200, json.dumps(answer).encode(), with_body, {})
        data = files.get("/".join(parts[4:]))
        if data is None:
            return self._send(404, b"", with_body, {"X-Error-Code": "EntryNotFound"})
        return self._send(
            200, data, with_body, {"ETag": f'"{_oid(data)}"', "X-Repo-Commit": COMMIT}
        )

    def _send(self, status: int, body: bytes, with_body: bool, headers: dict[str, str]) -> None:
        self.send_response(status)
        kind = "application/json" if body[:1] in (b"{", b"[") else "application/octet-stream"
        for name, value in {**headers, "Content-Type": kind, "Content-Length": len(body)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Keeps the requests off stderr."""


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
