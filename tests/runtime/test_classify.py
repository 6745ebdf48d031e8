"""Error classes: real exceptions from real sockets, databases, programs and graphs, told apart by type alone."""

from __future__ import annotations

import asyncio
import json
import operator
import os
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any, TypedDict

import httpx
import httpx2
import pytest
import requests
import sqlalchemy
from langchain_core.exceptions import ModelRateLimitError, OutputParserException
from langchain_core.tools import ToolException
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import EmptyInputError, InvalidUpdateError
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel, ValidationError

from everstep.errors import (
    EffectRejected,
    EverstepError,
    GraphLoadFailed,
    StateNotSerializable,
    StoreUnavailable,
    VerificationFailed,
)
from everstep.runtime import classify as classifying
from everstep.runtime.classify import classify, register
from tests.support.serving import serving

NOW_MS = 1_800_000_000_000


def _raised(action: Callable[[], Any]) -> BaseException:
    try:
        action()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def _verdict(error: BaseException) -> tuple[str, bool]:
    verdict = classify(error, now_ms=NOW_MS)
    return verdict.kind, verdict.surely_not_sent


def _raise(error: BaseException, cause: BaseException | None = None) -> BaseException:
    def action() -> None:
        raise error from cause

    return _raised(action)


class _Service(BaseHTTPRequestHandler):
    """`/status/503` answers so, `/retry/429/7` adds Retry-After, `/close` hangs up, `/silence` never answers."""

    ended: threading.Event

    def do_GET(self) -> None:
        _, action, *arguments = self.path.split("/", 3)
        if action == "close":
            self.close_connection = True
            return
        if action == "silence":
            self.ended.wait(10)
            return
        self.send_response(int(arguments[0]))
        if action == "retry":
            self.send_header("Retry-After", urllib.request.unquote(arguments[1]))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[str]:
    """A service on this machine that answers as it is asked to."""
    ended = threading.Event()
    handler = type("Handler", (_Service,), {"ended": ended})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with serving(server):
        yield f"http://127.0.0.1:{server.server_port}"
        ended.set()


@pytest.fixture
def nobody() -> str:
    """An address on this machine where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def registrations() -> Iterator[None]:
    """Forgets what a test registered."""
    before = dict(classifying._registered)
    yield
    classifying._registered.clear()
    classifying._registered.update(before)


CLIENTS: dict[str, Callable[[str], Any]] = {
    "httpx": lambda url: httpx.get(url, timeout=httpx.Timeout(5, read=0.2), trust_env=False).raise_for_status(),
    "httpx2": lambda url: httpx2.get(url, timeout=httpx2.Timeout(5, read=0.2), trust_env=False).raise_for_status(),
    "requests": lambda url: requests.get(url, timeout=(5, 0.2)).raise_for_status(),
    "urllib": lambda url: urllib.request.urlopen(url, timeout=0.2),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_lost_answer_is_retried_but_not_taken_for_unsent(client: str, service: str) -> None:
    """A timeout and a hang-up after the request left are retried, and nobody may conclude that nothing happened."""
    for path in ("/silence", "/close"):
        error = _raised(lambda path=path: CLIENTS[client](service + path))
        assert _verdict(error) == ("retry", False), repr(error)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_refused_connection_is_surely_not_sent(client: str, nobody: str) -> None:
    """Where nobody listens, nothing can have happened."""
    assert _verdict(_raised(lambda: CLIENTS[client](nobody))) == ("retry", True)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("status", "kind", "surely_not_sent"),
    [
        (400, "failed", True),
        (401, "review", True),
        (402, "review", True),
        (403, "review", True),
        (404, "failed", True),
        (408, "retry", False),
        (409, "review", False),
        (422, "failed", True),
        (429, "retry", True),
        (500, "retry", False),
        (502, "retry", False),
        (503, "retry", True),
        (504, "retry", False),
    ],
)
def test_a_status_decides_whatever_client_saw_it(
    client: str, status: int, kind: str, surely_not_sent: bool, service: str
) -> None:
    """The status of a response is read from any client's exception."""
    error = _raised(lambda: CLIENTS[client](f"{service}/status/{status}"))
    assert _verdict(error) == (kind, surely_not_sent)
    assert classify(error).rule == f"status {status}"


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("header", "wait"),
    [("7", 7_000), ("Fri, 15 Jan 2027 08:01:00 GMT", 60_000), ("soon", None), ("-5", None)],
)
def test_a_services_wait_is_read_from_any_client(client: str, header: str, wait: int | None, service: str) -> None:
    """Seconds and dates count from the given time; garbage and negative numbers ask for nothing."""
    error = _raised(lambda: CLIENTS[client](f"{service}/retry/429/{urllib.request.quote(header)}"))
    assert classify(error, now_ms=NOW_MS).retry_after_ms == wait


def test_only_a_retry_waits(service: str) -> None:
    """A failed request with Retry-After stays failed, and waits for nothing."""
    error = _raised(lambda: CLIENTS["httpx"](f"{service}/retry/404/7"))
    assert classify(error).retry_after_ms is None


def test_other_errors_of_httpx(nobody: str) -> None:
    """A pool without a free connection sent nothing; an address of an unknown kind is invalid input, and not sent."""
    pool = httpx.PoolTimeout("no connection", request=httpx.Request("GET", nobody))
    assert _verdict(pool) == ("retry", True)
    assert _verdict(_raised(lambda: httpx.get("ftp://127.0.0.1", trust_env=False))) == ("failed", True)


def test_sockets_and_names(nobody: str) -> None:
    """The standard library's own network errors are told apart in the same way."""
    port = int(nobody.rpartition(":")[2])
    assert _verdict(_raised(lambda: socket.create_connection(("127.0.0.1", port)))) == ("retry", True)
    assert _verdict(_raised(lambda: socket.getaddrinfo("no-such-host.invalid", 1))) == ("retry", True)
    assert _verdict(ConnectionResetError()) == ("retry", False)
    assert _verdict(BrokenPipeError()) == ("retry", False)
    assert _verdict(TimeoutError()) == ("retry", False)
    assert _verdict(OSError(101, "Network is unreachable")) == ("retry", False)
    assert _verdict(ssl.SSLCertVerificationError()) == ("review", True)
    assert _verdict(ssl.SSLEOFError()) == ("retry", False)


def test_a_timeout_of_asyncio() -> None:
    """`asyncio.timeout` raises what a socket raises."""

    async def main() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    assert _verdict(_raised(lambda: asyncio.run(main()))) == ("retry", False)


class _Order(BaseModel):
    count: int


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        (lambda: int("x"), "failed"),
        (lambda: _Order.model_validate({"count": "x"}), "failed"),
        (lambda: json.loads("<html>"), "review"),
        (lambda: b"\xff".decode(), "review"),
        (lambda: {}["missing"], "review"),
        (lambda: [][1], "review"),
        (lambda: None.x, "review"),
        (lambda: 1 + "1", "review"),
        (lambda: 1 / 0, "review"),
        (lambda: __import__("no_such_module"), "review"),
        (lambda: Path("/no/such/file").read_text(), "review"),
        (lambda: os.listdir(__file__), "review"),
        (lambda: subprocess.run([sys.executable, "-c", "exit(3)"], check=True), "review"),
        (lambda: subprocess.run(["no-such-program"], check=True), "review"),
        (lambda: subprocess.run([sys.executable, "-c", "import signal; signal.pause()"], timeout=0.05), "retry"),
    ],
)
def test_builtin_errors(action: Callable[[], Any], kind: str) -> None:
    """Wrong values are failed, faults in code wait for a person, timeouts are tried again."""
    assert _verdict(_raised(action)) == (kind, False)


def test_a_full_disk_passes() -> None:
    """A machine that is out of something may have it again later."""
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")

    def fill() -> None:
        with open("/dev/full", "w", buffering=1) as full:
            full.write("x\n" * 100_000)

    assert _verdict(_raised(fill)) == ("retry", False)


def test_a_locked_database_is_retried_and_a_wrong_statement_is_not(tmp_path: Path) -> None:
    """SQLite's one error type is told apart by its result code, bare and behind SQLAlchemy."""
    path = tmp_path / "some.db"
    holder = sqlite3.connect(path)
    holder.execute("BEGIN EXCLUSIVE")
    other = sqlite3.connect(path, timeout=0)
    engine = sqlalchemy.create_engine(f"sqlite:///{path}", connect_args={"timeout": 0})

    def through_sqlalchemy(statement: str) -> None:
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text(statement))

    try:
        assert _verdict(_raised(lambda: other.execute("CREATE TABLE t (x)"))) == ("retry", False)
        assert _verdict(_raised(lambda: through_sqlalchemy("CREATE TABLE t (x)"))) == ("retry", False)
        holder.rollback()
        assert _verdict(_raised(lambda: other.execute("SELEC 1"))) == ("review", False)
        assert _verdict(_raised(lambda: through_sqlalchemy("SELEC 1"))) == ("review", False)
    finally:
        engine.dispose()
        other.close()
        holder.close()


class _State(TypedDict):
    steps: Annotated[list[str], operator.add]


def _graph(node: Callable[[_State], Any]) -> Any:
    builder = StateGraph(_State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", "node")
    return builder.compile()


def test_errors_of_langgraph() -> None:
    """A loop that does not end needs a person; input or updates that the state cannot take are failed."""
    endless = _raised(lambda: _graph(lambda state: {"steps": ["x"]}).invoke({"steps": []}, {"recursion_limit": 3}))
    assert _verdict(endless) == ("review", False)
    wrong = _raised(lambda: _graph(lambda state: "no update").invoke({"steps": []}))
    assert isinstance(wrong, InvalidUpdateError)
    assert _verdict(wrong) == ("failed", False)
    empty = _raised(lambda: _graph(lambda state: {}).invoke(None))
    assert isinstance(empty, EmptyInputError)
    assert _verdict(empty) == ("failed", False)


def test_errors_of_langchain() -> None:
    """Output that does not parse gets another try; a tool's own error waits for a person; a rate limit passes."""
    assert _verdict(OutputParserException("no JSON")) == ("retry", False)
    assert _verdict(ToolException("no such order")) == ("review", False)

    class ProviderRateLimit(ModelRateLimitError):
        def __init__(self) -> None:
            super().__init__("slow down")
            self.response = httpx.Response(429, headers={"retry-after-ms": "1500"})

    verdict = classify(ProviderRateLimit())
    assert (verdict.kind, verdict.surely_not_sent, verdict.retry_after_ms) == ("retry", True, 1500)


def test_everstep_errors() -> None:
    """Its own errors: a failed check is looked at, an unstorable state is final, a record that is away comes back."""
    assert classify(VerificationFailed("pytest failed")).kind == "review"
    assert classify(StateNotSerializable("$.x")).kind == "failed"
    assert classify(StoreUnavailable("disk full")).kind == "retry"
    assert classify(EverstepError("something")).kind == "review"


def test_an_own_error_that_is_also_a_builtin_one() -> None:
    """An error of the catalogue that is a `ValueError` too counts as invalid input."""

    class InputWrong(EverstepError, ValueError):
        pass

    assert classify(InputWrong("no such branch")).kind == "failed"


def test_a_rejected_effect_surely_did_nothing() -> None:
    """`EffectRejected` is the function's word that the world did not act; its cause decides what becomes of the job."""
    assert _verdict(EffectRejected("quota")) == ("review", True)
    assert _verdict(_raise(EffectRejected("busy"), ConnectionResetError())) == ("retry", True)


def test_a_graph_that_cannot_load_for_a_passing_reason_is_retried() -> None:
    """A factory that could not reach its server is not a wrong configuration."""
    assert classify(_raise(GraphLoadFailed("x"), ConnectionRefusedError())).kind == "retry"
    assert classify(_raise(GraphLoadFailed("x"), ImportError())).kind == "review"
    assert classify(GraphLoadFailed("x")).kind == "review"


class _SdkError(Exception):
    pass


def test_an_unknown_error_goes_to_review() -> None:
    """When in doubt, a person decides."""
    verdict = classify(_SdkError("please retry in 5 s: 503 connection reset timeout"))
    assert (verdict.kind, verdict.surely_not_sent, verdict.rule) == ("review", False, "default")
    assert classify(RuntimeError("retry")).kind == "review"
    assert classify(Exception("429")).kind == "review"


def test_an_unknown_wrapper_is_judged_by_its_cause() -> None:
    """A wrapped loss of connection is one, however deep, but never surely unsent: an earlier try may have arrived."""
    inner = _raise(_SdkError("inner"), ConnectionRefusedError())
    verdict = classify(_raise(_SdkError("outer"), inner))
    assert (verdict.kind, verdict.surely_not_sent) == ("retry", False)
    assert verdict.rule == "cause: cause: ConnectionRefusedError"


def test_an_implicit_cause_counts_unless_it_is_suppressed() -> None:
    """`raise` inside `except` keeps the cause; `from None` says that it does not matter."""

    def implicit() -> None:
        try:
            raise TimeoutError
        except TimeoutError:
            raise _SdkError  # noqa: B904

    def suppressed() -> None:
        try:
            raise TimeoutError
        except TimeoutError:
            raise _SdkError from None

    assert classify(_raised(implicit)).kind == "retry"
    assert classify(_raised(suppressed)).kind == "review"


def test_a_fault_while_handling_an_error_is_the_fault() -> None:
    """A `KeyError` in the handler of a timeout is not a timeout."""

    def action() -> None:
        try:
            raise TimeoutError
        except TimeoutError:
            {}["missing"]

    assert classify(_raised(action)).kind == "review"


def test_a_wrapper_never_fails_a_job_by_its_cause() -> None:
    """What ends a job must be certain: a `ValueError` deep in an SDK is not proof of invalid input."""
    assert classify(_raise(_SdkError("x"), ValueError("y"))).kind == "review"


def test_a_value_error_raised_from_a_lost_connection_is_retried() -> None:
    """`raise ValueError("no such repository") from error` after a lost connection does not end the job."""
    assert classify(_raise(ValueError("x"), ConnectionResetError())).kind == "retry"
    assert classify(_raise(ValueError("x"), ValueError("y"))).kind == "failed"


def test_a_circle_of_causes_ends() -> None:
    """Exceptions that cause each other are judged all the same."""
    one, other = _SdkError("one"), _SdkError("other")
    one.__cause__, other.__cause__ = other, one
    assert classify(one).kind == "review"


def test_a_group_is_as_careful_as_its_most_careful_member() -> None:
    """Of several errors at once, review goes before failed and failed before retry."""
    lost, wrong, fault = ConnectionResetError(), ValueError(), KeyError()
    assert _verdict(ExceptionGroup("", [lost, ConnectionRefusedError()])) == ("retry", False)
    assert _verdict(ExceptionGroup("", [ConnectionRefusedError(), ConnectionRefusedError()])) == ("retry", True)
    assert classify(ExceptionGroup("", [lost, ExceptionGroup("", [wrong])])).kind == "failed"
    assert classify(ExceptionGroup("", [lost, wrong, fault])).kind == "review"


@pytest.mark.parametrize(
    ("attributes", "kind"),
    [
        ({"status_code": 503}, "retry"),
        ({"status": 429}, "retry"),
        ({"code": 404}, "failed"),
        ({"response": {"ResponseMetadata": {"HTTPStatusCode": 403}}}, "review"),
        ({"status_code": True}, "review"),
        ({"code": 7}, "review"),
        ({"code": "503"}, "review"),
        ({"status_code": 302}, "review"),
    ],
)
def test_an_unknown_sdk_is_judged_by_its_status(attributes: dict[str, Any], kind: str) -> None:
    """A numeric HTTP status on an exception of any SDK decides; other numbers and texts do not."""
    error = _SdkError("text")
    for name, value in attributes.items():
        setattr(error, name, value)
    assert classify(error).kind == kind


@pytest.mark.usefixtures("registrations")
def test_a_program_registers_its_own_types() -> None:
    """A registered type goes before every rule, for its subclasses too, and a specific one before a general one."""

    class Busy(ValueError):
        pass

    class VeryBusy(Busy):
        status_code = 404

    register(Busy, "retry", surely_not_sent=True)
    assert _verdict(VeryBusy()) == ("retry", True)
    assert classify(VeryBusy()).rule.startswith("registered ")
    register(VeryBusy, "review")
    assert _verdict(VeryBusy()) == ("review", False)
    with pytest.raises(ValueError, match="kind is"):
        register(Busy, "again")


def test_an_answer_of_the_wrong_form_is_asked_again() -> None:
    """LangGraph's `ValidationError` for a person's answer is not invalid input of the job."""
    builder = StateGraph(_State)
    builder.add_node("ask", lambda state: {"steps": [interrupt("how many?", response_schema=_Order)]})
    graph = builder.add_edge(START, "ask").compile(checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    graph.invoke({"steps": []}, thread)
    error = _raised(lambda: graph.invoke(Command(resume={"count": "many"}), thread))
    assert isinstance(error, ValidationError)
    assert classify(error).kind == "review"


def test_no_library_is_imported_to_classify() -> None:
    """Classifying needs only what the process has already imported."""
    script = (
        "import sys; from everstep.runtime.classify import classify; before = set(sys.modules);"
        "classify(RuntimeError('x')); print(set(sys.modules) - before, 'sqlalchemy' in before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert done.stdout.split() == ["set()", "False"]


def test_an_outage_that_is_none_is_not_registered() -> None:
    """Commands could not say later what it means."""
    with pytest.raises(ValueError, match="rate_limited"):
        register(LookupError, "retry", outage="foo")  # pyright: ignore[reportArgumentType]
