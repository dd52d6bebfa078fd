"""A webhook on this machine, for tests of notices."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from holdfast.adapters.notice_settings import Destination, NotifyConfig


class Web:
    """A webhook that keeps what it was sent; while `away` it answers 503."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.away = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if not outer.away.is_set():
                    outer.got.append(json.loads(body))
                self.send_response(503 if outer.away.is_set() else 200)
                self.end_headers()

            def log_message(self, *_words: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        """As Apprise writes it."""
        return f"json://127.0.0.1:{self.server.server_port}/hook"

    def config(self, **more: Any) -> NotifyConfig:
        """`[notify]` with this one destination."""
        return NotifyConfig(
            group_s=0.0,
            link="https://holdfast.example",
            allow=("127.0.0.1",),
            to=(Destination(name="team", url=self.url, **more),),
        )


@contextmanager
def webhook() -> Iterator[Web]:
    """One that listens until the end of the block."""
    made = Web()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join(60)
