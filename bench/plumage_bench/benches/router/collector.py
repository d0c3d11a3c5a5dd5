"""Takes the spans of the benchmark's router, as an OpenTelemetry collector would: it reads each export and keeps none.

`python -m plumage_bench.benches.router.collector PORT` prints `ready` when it listens.
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["main"]


class _Taken(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # exporters keep their connection

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def main(port: int) -> None:
    """Runs until it is killed."""
    with ThreadingHTTPServer(("127.0.0.1", port), _Taken) as server:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
