"""The local server: it gives the page, and compiles what is typed there. Nothing else.

It listens on the loopback address alone. Other pages in the same browser could still reach that
address, so a question counts only if it names this server (a name that was bent to point here does
not), comes from its own page, and carries the secret that stands in that page.
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from statetrack.playground.page import policy, render
from statetrack.playground.worker import Compiler

__all__ = ["LONGEST", "MAX_BODY", "Playground"]

HOST = "127.0.0.1"
MAX_BODY = 8192
"""Bytes of the largest question."""

LONGEST = 1000
"""Characters of the longest expression, and of an alphabet."""

PATIENCE = 10
"""Seconds that a connection may keep quiet."""


class Playground:
    """A server for one page; `address` is where to open it.

    >>> playground = Playground([])
    >>> playground.address.startswith("http://127.0.0.1:")
    True
    >>> playground.close()
    """

    def __init__(
        self,
        entries: list[dict[str, Any]],
        port: int = 0,
        compiler: Compiler | None = None,
    ) -> None:
        if not 0 <= port < 2**16:
            raise ValueError(f"port={port} must be between 0 (any free one) and 65535")
        self.secret = secrets.token_urlsafe(24)
        self._page = render(entries, self.secret).encode()
        self._compiler = Compiler() if compiler is None else compiler
        self._busy = threading.Lock()
        try:
            self._server = _Server((HOST, port), _Handler)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ValueError(f"port {port} cannot be used: {reason}; leave --port out") from None
        self._server.playground = self
        self.port: int = self._server.server_address[1]

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.port}/"

    def serve(self) -> None:
        """Answers until `close`, or Ctrl-C."""
        self._server.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """Ends `serve`, which runs in another thread."""
        self._server.shutdown()

    def close(self) -> None:
        """Stops what is being compiled, and lets go of the port."""
        self._compiler.end()
        self._server.server_close()

    def page(self) -> bytes:
        """The page."""
        return self._page

    def names(self, host: str | None) -> bool:
        """Whether a Host header names this server."""
        return host in (f"{HOST}:{self.port}", f"localhost:{self.port}")

    def answer(self, question: object) -> tuple[HTTPStatus, dict[str, Any]]:
        """What a question from the page gets; one machine is compiled at a time."""
        if not isinstance(question, dict) or set(question) != {"machine", "alphabet"}:
            return _refused(HTTPStatus.BAD_REQUEST, "a question has a machine and an alphabet")
        text, alphabet = question["machine"], question["alphabet"]
        if not isinstance(text, str) or not isinstance(alphabet, str | None):
            return _refused(HTTPStatus.BAD_REQUEST, "machine and alphabet are texts")
        if max(len(text), len(alphabet or "")) > LONGEST:
            return _refused(HTTPStatus.OK, f"too long: an expression has at most {LONGEST} letters")
        if not self._busy.acquire(timeout=PATIENCE):
            return _refused(HTTPStatus.OK, "another machine is being compiled; try again")
        try:
            return HTTPStatus.OK, self._compiler(text, alphabet)
        finally:
            self._busy.release()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    playground: Playground

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who went away before the answer came is no mistake of ours."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "statetrack"
    sys_version = ""
    timeout = PATIENCE

    def do_GET(self) -> None:
        if not self.server.playground.names(self.headers["Host"]):
            self._refuse(HTTPStatus.FORBIDDEN, "this server has another name")
        elif self.path != "/":
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here")
        else:
            self._send(HTTPStatus.OK, self.server.playground.page(), "text/html; charset=utf-8")

    def do_POST(self) -> None:
        playground = self.server.playground
        own = f"http://{self.headers['Host']}"
        if not playground.names(self.headers["Host"]):
            self._refuse(HTTPStatus.FORBIDDEN, "this server has another name")
        elif self.headers["Origin"] not in (None, own) or not secrets.compare_digest(
            (self.headers["X-Statetrack"] or "").encode("utf-8", "replace"),
            playground.secret.encode(),
        ):
            self._refuse(HTTPStatus.FORBIDDEN, "questions come from the page of this server")
        elif self.path != "/compile":
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here")
        else:
            self._compile()

    def _compile(self) -> None:
        length = self.headers["Content-Length"] or ""
        if not length.isdecimal():
            return self._refuse(HTTPStatus.LENGTH_REQUIRED, "how long is the question?")
        if int(length) > MAX_BODY:
            return self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the question is too long")
        try:
            question = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            return self._refuse(HTTPStatus.BAD_REQUEST, "the question is not JSON")
        status, answered = self.server.playground.answer(question)
        self._send(status, json.dumps(answered).encode(), "application/json")

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True
        self._send(status, json.dumps({"error": why}).encode(), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": policy(True) + "; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the terminal belongs to the person who started it."""


def _refused(status: HTTPStatus, why: str) -> tuple[HTTPStatus, dict[str, Any]]:
    return status, {"error": why}
