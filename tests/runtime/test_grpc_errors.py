"""gRPC's statuses, of errors as grpcio makes them: by a type like its own, and by the library where it is installed."""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.any_pb2 import Any as Packed
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from everstep.runtime.classify import classify
from everstep.runtime.rules.grpc_status import GRPC
from tests.cli.folder import PATIENCE_S, Folder

grpc: Any = importlib.import_module("grpc")  # without types of its own
RpcError: Any = type("RpcError", (Exception,), {"__module__": "grpc"})
Code = Enum("Code", [*GRPC])
DETAILS = "grpc-status-details-bin"


class Inactive(RpcError):
    """As grpcio's errors of a call: a type of its own below `RpcError`, whose methods tell."""

    def __init__(self, code: Any, *metadata: Any) -> None:
        self._code, self._metadata = code, metadata

    def code(self) -> Any:
        return self._code

    def details(self) -> str:
        return "out of tea"

    def trailing_metadata(self) -> Any:
        return self._metadata


class Broken(RpcError):
    """One whose methods raise."""

    def code(self) -> Any:
        raise ValueError("no code")

    def trailing_metadata(self) -> Any:
        raise ValueError("no metadata")


def status_with(*details: Any) -> bytes:
    """A `google.rpc.Status` as it comes in the metadata."""
    status = Status(code=8, message="out of tea")
    for detail in details:
        packed = Packed()
        packed.Pack(detail)
        status.details.append(packed)
    return status.SerializeToString()


def retry_in(seconds: float) -> RetryInfo:
    """A `RetryInfo`."""
    info = RetryInfo()
    info.retry_delay.FromMilliseconds(int(seconds * 1000))
    return info


@pytest.mark.parametrize("code", Code)
def test_the_status_decides_and_proves_nothing(code: Code) -> None:
    """Each of gRPC's codes has its rule, and none lets an effect run again by itself."""
    verdict = classify(Inactive(code))
    expected = {
        **dict.fromkeys(("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "INTERNAL"), "retry"),
        **dict.fromkeys(("INVALID_ARGUMENT", "OUT_OF_RANGE", "NOT_FOUND"), "failed"),
    }
    assert verdict.kind == expected.get(code.name, "review")
    assert verdict.rule == f"grpc {code.name}"
    assert not verdict.surely_not_sent
    assert not GRPC[code.name].surely_not_sent, "the rule says so itself, as the documentation shows it"
    assert verdict.outage == ("service_unavailable" if code.name == "UNAVAILABLE" else None)
    assert verdict.service is None  # the error does not say which


def test_an_error_without_a_status_is_a_persons() -> None:
    """The bare type, a status of a time to come, and one that cannot be asked."""
    assert classify(RpcError()).kind == "review"
    assert classify(Inactive(None)).rule == "grpc WITHOUT A STATUS"
    assert classify(Inactive(Enum("Later", ["NEW_CODE"]).NEW_CODE)).kind == "review"
    assert classify(Broken()).rule == "grpc WITHOUT A STATUS"


def test_details_tell_how_long_to_wait_and_why() -> None:
    """`RetryInfo` asks for a time, and says that it is a rate; `ErrorInfo` goes before the status; rubbish is none."""
    exhausted = Code["RESOURCE_EXHAUSTED"]
    waits = classify(Inactive(exhausted, ("x", "y"), (DETAILS, status_with(ErrorInfo(), retry_in(3.5)))))
    assert (waits.kind, waits.retry_after_ms, waits.outage) == ("retry", 3_500, "rate_limited")
    unpaid = classify(Inactive(Code["PERMISSION_DENIED"], (DETAILS, status_with(ErrorInfo(reason="BILLING_DISABLED")))))
    assert (unpaid.kind, unpaid.outage, unpaid.surely_not_sent) == ("review", "payment_failed", False)
    for rubbish in (b"\xff\xff", b"", "text"):
        told = classify(Inactive(exhausted, (DETAILS, rubbish)))
        assert (told.kind, told.retry_after_ms, told.outage) == ("retry", None, None)


def test_the_command_explains_a_status(tmp_path: Path) -> None:
    """`--code` takes the status's name."""
    (tmp_path / "grpc.py").write_text("class RpcError(Exception):\n    pass\n")
    told, bare = Folder(tmp_path).all_json(
        ("classify", "grpc.RpcError", "--code", "UNAVAILABLE"), ("classify", "grpc.RpcError")
    )
    assert (told["kind"], told["rule"], told["surely_not_sent"]) == ("retry", "grpc UNAVAILABLE", False)
    assert bare["kind"] == "review"


def test_a_status_that_there_is_not_is_refused(tmp_path: Path) -> None:
    """A typing error would look like a rule."""
    (tmp_path / "grpc.py").write_text("class RpcError(Exception):\n    pass\n")
    refused = Folder(tmp_path).run("classify", "grpc.RpcError", "--code", "UNAVALABLE")
    assert refused.code == 64
    assert "'UNAVALABLE' is no status of gRPC: UNAVAILABLE" in refused.err


def test_errors_of_the_library_itself() -> None:
    """A real call to a real server that refuses with details, and one that nobody answers."""

    def refuse(_request: bytes, context: Any) -> bytes:
        context.set_trailing_metadata(((DETAILS, status_with(retry_in(7))),))
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "later")
        return b""

    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {"Ask": grpc.unary_unary_rpc_method_handler(refuse)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tea", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/tea/Ask")(b"", timeout=PATIENCE_S)
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as unknown:
            channel.unary_unary("/tea/Brew")(b"", timeout=PATIENCE_S)
    finally:
        server.stop(None).wait()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as gone:
        channel.unary_unary("/tea/Ask")(b"", timeout=PATIENCE_S)
    verdict = classify(refused.value)
    assert (verdict.rule, verdict.retry_after_ms, verdict.outage) == ("grpc RESOURCE_EXHAUSTED", 7_000, "rate_limited")
    assert classify(unknown.value).rule == "grpc UNIMPLEMENTED"
    assert classify(gone.value).rule == "grpc UNAVAILABLE"
    assert not classify(gone.value).surely_not_sent
