"""Two ends for traces, in the process of the harness: one takes what is sent and counts it, one never answers."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """Counts the spans that arrive.

    Attributes:
        url: Its address.
        spans: Ids of those that arrived; one that comes twice counts once.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: set[bytes] = set()

    def take(self, body: bytes) -> None:
        """Count what a request holds."""
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans |= {span.span_id for span in scope.spans}


@contextmanager
def collector() -> Generator[Collector]:
    """One that answers at once."""
    taken = Collector("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path.endswith("/traces"):  # metrics come too
                taken.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    taken.url = f"http://127.0.0.1:{server.server_port}"
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield taken
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


@contextmanager
def black_hole() -> Generator[str]:
    """The URL of one that takes connections and never says a word."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=64)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
