"""Langfuse through its SDK, for what is not spans: do the keys hold, which project is it, and scores.

Spans go there by OTLP and need no SDK. The SDK's REST client is used, not its tracing client, which would start threads
and a tracer provider. No error told here holds a key, a header or the body of an answer.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from everstep.errors import LangfuseUnavailable, LangfuseUnusable, PayloadInvalid
from everstep.observability import destinations
from everstep.observability.destinations import LANGFUSE_PATH, Fault, LangfuseDestination

if TYPE_CHECKING:
    from langfuse.api import LangfuseAPI

TIMEOUT_S: Final = 5.0
REFUSED: Final = (401, 403)
COMMENT_LIMIT: Final = 2_000

ScoreType: TypeAlias = Literal["NUMERIC", "BOOLEAN", "CATEGORICAL"]


@dataclass(frozen=True)
class Project:
    """The project that the keys belong to."""

    id: str
    name: str


@dataclass(frozen=True)
class Score:
    """A judgement of a leg.

    Attributes:
        id: The same for the same leg and name, so that scoring again replaces.
        trace_id: The leg's trace.
        name: What is judged, such as `correctness`.
        value: A number, or a category.
        type: How Langfuse reads the value; for `BOOLEAN` it is 1 or 0.
        comment: Why, in the person's words.
        at_ms: Its time, UTC milliseconds: with the id it decides what it replaces, so it is the leg's, not today.
    """

    id: str
    trace_id: str
    name: str
    value: float | str
    type: ScoreType
    comment: str | None
    at_ms: int


def configured() -> LangfuseDestination | None:
    """The Langfuse that the environment names; None if it names none, or not all that is needed."""
    found = [one for one in destinations.read().destinations if isinstance(one, LangfuseDestination)]
    return found[0] if found else None


def missing() -> list[str]:
    """Those of Langfuse's three variables that are not set."""
    given = {
        "LANGFUSE_PUBLIC_KEY": os.environ.get("LANGFUSE_PUBLIC_KEY", ""),
        "LANGFUSE_SECRET_KEY": os.environ.get("LANGFUSE_SECRET_KEY", ""),
        "LANGFUSE_HOST": os.environ.get("LANGFUSE_HOST", "") or os.environ.get("LANGFUSE_BASE_URL", ""),
    }
    return [name for name, value in given.items() if not value.strip()]


def fault() -> Fault | None:
    """What keeps traces from the Langfuse that the environment names."""
    return next((one for one in destinations.read().faults if one.is_langfuse), None)


def required() -> LangfuseDestination:
    """As `configured`.

    Raises:
        LangfuseUnusable: The environment names none.
    """
    found = configured()
    if found is None:
        next_step = "it is switched off: see OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER and LANGFUSE_TRACING_ENABLED"
        if missing():
            next_step = f"set {' and '.join(missing())}"
        elif wrong := fault():
            raise LangfuseUnusable(wrong.message, next_step=wrong.next_step)
        raise LangfuseUnusable("Langfuse is not configured", next_step=next_step)
    return found


def host(settings: LangfuseDestination) -> str:
    """Where its pages are: the host as configured, without a user name or password."""
    parts = urlsplit(settings.endpoint.removesuffix(LANGFUSE_PATH))
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def project(settings: LangfuseDestination, timeout_s: float = TIMEOUT_S) -> Project:
    """Ask which project the keys belong to, which shows that they hold.

    Args:
        settings: Where, and the keys.
        timeout_s: Seconds to wait for an answer, and for a connection.

    Raises:
        LangfuseUnusable: The keys are refused, or the SDK is not installed.
        LangfuseUnavailable: It cannot be reached, or what answers is no Langfuse.
    """
    with asking(settings, timeout_s) as api:
        found = api.projects.get(request_options={"max_retries": 0})
        if not found.data:
            raise LangfuseUnusable(f"the keys belong to no project at {host(settings)}", next_step=_look_up())
        return Project(found.data[0].id, found.data[0].name)


def send(settings: LangfuseDestination, score: Score, timeout_s: float = TIMEOUT_S) -> None:
    """Write a score; one of the same id is replaced.

    Raises:
        LangfuseUnusable: The keys are refused, the score is not taken, or the SDK is not installed.
        LangfuseUnavailable: It cannot be reached, or answers with an error.
    """
    with asking(settings, timeout_s) as api:
        from langfuse.api.commons.types.score_data_type import ScoreDataType
        from langfuse.api.scores.types.create_score_batch_results import CreateScoreBatchResults
        from langfuse.api.scores.types.create_score_request import CreateScoreRequest

        request = CreateScoreRequest(
            id=score.id,
            trace_id=score.trace_id,
            name=score.name,
            value=score.value,
            data_type=ScoreDataType(score.type),
            comment=score.comment,
            timestamp=datetime.fromtimestamp(score.at_ms / 1000, UTC),
        )
        answer = api.scores.create(request=[request], request_options={"max_retries": 0})
        if isinstance(answer, CreateScoreBatchResults) and answer.rejected:
            why = "; ".join(str(one.message) for one in answer.errors)[:500]
            raise LangfuseUnusable(f"Langfuse did not take the score: {why}", next_step="check its name and its value")


def score_id(job_id: str, leg: int, name: str) -> str:
    """The id of a leg's score of this name, as 32 lower-case hexadecimal digits."""
    text = f"everstep/score/{job_id}/{leg}/{name}"
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]


@contextmanager
def asking(settings: LangfuseDestination, timeout_s: float) -> Generator[LangfuseAPI]:
    """The SDK's client, closed afterwards; what it raises becomes an error of ours that tells no secret."""
    try:
        import httpx
        from langfuse.api import LangfuseAPI
        from langfuse.api.core import ApiError
    except ImportError as error:
        raise LangfuseUnusable(
            "Langfuse's SDK is not installed (spans are sent without it)",
            next_step="pip install 'everstep[langfuse]'",
            package="langfuse",
        ) from error
    where = host(settings)

    def unreachable(why: str) -> LangfuseUnavailable:
        next_step = "check LANGFUSE_HOST, and that it can be reached from here"
        return LangfuseUnavailable(f"{where} {why}", next_step=next_step)

    try:
        with httpx.Client(timeout=timeout_s, follow_redirects=False) as client:
            yield LangfuseAPI(
                base_url=settings.endpoint.removesuffix(LANGFUSE_PATH),
                username=settings.public_key,
                password=settings.secret_key,
                httpx_client=client,
            )
    except ApiError as error:
        if error.status_code in REFUSED:
            raise LangfuseUnusable(f"{where} refuses the keys ({error.status_code})", next_step=_look_up()) from None
        if error.status_code in (400, 422):
            raise LangfuseUnusable(f"{where} refuses the request ({error.status_code})", next_step=_look_up()) from None
        if error.status_code is not None and error.status_code < 400:
            raise unreachable(f"answers, but not as a Langfuse does ({error.status_code})") from None
        raise unreachable(f"answers with an error ({error.status_code})") from None
    except httpx.InvalidURL:
        raise unreachable("is no URL") from None
    except httpx.TimeoutException:
        raise unreachable(f"does not answer within {timeout_s:g} s") from None
    except httpx.HTTPError as error:
        raise unreachable(f"cannot be reached ({type(error).__name__})") from None
    except (ValueError, TypeError, KeyError) as error:  # pydantic's, of an answer that is not what was asked for
        raise unreachable(f"answers, but not as a Langfuse does ({type(error).__name__})") from None


def _look_up() -> str:
    return "take both keys from the project's settings in Langfuse (API keys), and the host of the same region"


def parsed(text: str) -> tuple[float | str, ScoreType]:
    """A score's value as it was typed: `true` or `false`, a number, or a category.

    Raises:
        PayloadInvalid: It is no number (NaN) or infinite: nothing could be made of it, and as a category it would hide
            the mistake of whatever computed it.
    """
    if text.lower() in ("true", "false"):
        return float(text.lower() == "true"), "BOOLEAN"
    try:
        number: Any = float(text)
    except ValueError:
        return text, "CATEGORICAL"
    if not math.isfinite(number):
        raise PayloadInvalid(
            f"the score's value is {text.strip()}, which is no finite number",
            next_step="give a number, true or false, or a category such as unknown",
        )
    return number, "NUMERIC"
