"""What a job of the shipped graph `generation` is given, what it knows on the way, and what it hands back."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal, Required, TypedDict, cast

from everstep.checkpoints.canonical import MAX_INTEGER, digest
from everstep.errors import PayloadInvalid
from everstep.nodes.artefacts import Artefact

WINDOW_S = 3600.0
GIVE_UP_S = 7 * 86_400.0
MOST_WINDOWS = 100_000
"""How many windows may pass until a person is asked: each is a start of the job."""
LONGEST_S = 366 * 86_400
LONGEST_KEY = 200
MOST_NAMES = 10


class Generation(TypedDict, total=False):
    """What is asked for.

    Attributes:
        provider: A provider of `everstep.toml`. Required.
        model: A model of its price list. Required.
        prompt: What to make. Required.
        duration: Seconds, where the model takes a duration.
        resolution: One of the price list's; its first when omitted.
        outputs: How many; 1 when omitted.
        options: Options of the model, by name.
        client_price: What the client showed as the price: it counts nothing, but a difference is noted. The smallest
            unit.
        submission_key: What makes it the same submission, among all of the owner's; when omitted, what is asked for.
        generation: 1, or one more than the one that failed, to pay and try once more.
        window_s: Seconds after which an observation ends and another begins.
        give_up_after_s: Seconds after which a person is asked whether to go on.
    """

    provider: Required[str]
    model: Required[str]
    prompt: Required[str]
    duration: float | None
    resolution: str | None
    outputs: int
    options: dict[str, Any]
    client_price: int | None
    submission_key: str | None
    generation: int
    window_s: float
    give_up_after_s: float


Outcome = Literal["succeeded", "failed", "given_up"]


class GenerationResult(TypedDict, total=False):
    """What came of it.

    Attributes:
        outcome: `succeeded`, `failed`, or `given_up`: a person did not want to wait any longer.
        message: The same in a sentence.
        next_step: What can be done now.
        artefacts: What was made.
        price: For people: `1.25 EUR`.
        charged: What was charged, the currency's smallest unit.
        refunded: What of that came back.
        error: Why it failed, as the provider said.
    """

    outcome: Outcome
    message: str
    next_step: str
    artefacts: list[Artefact]
    price: str
    charged: int
    refunded: int
    error: Any


class GenerationState(Generation, GenerationResult, total=False):
    """What is kept between the steps.

    Attributes:
        request: What the provider is asked for.
        key: The submission's key.
        quote: The price, and what it is made of.
        price_mismatch: The price the client showed, and the real one, if they differ.
        task: The task's id (ours).
        amount: What it was charged, the currency's smallest unit.
        task_state: `pending`, `succeeded` or `failed`.
        progress: Percent, if the provider tells.
        give_up_at: When a person is asked, UTC milliseconds.
        given_up: Whether a person did not want to wait any longer.
    """

    request: Required[dict[str, Any]]
    key: Required[str]
    quote: Required[dict[str, Any]]
    price_mismatch: dict[str, Any] | None
    task: Required[str]
    amount: Required[int]
    task_state: Required[str]
    progress: int | None
    give_up_at: Required[int]
    given_up: bool


def check(job: Generation) -> None:
    """Refuse input that cannot be carried out, whatever the price list says.

    Raises:
        PayloadInvalid: A field is missing, of the wrong type or out of range.
    """
    given = cast("dict[str, Any]", job)
    for name in ("provider", "model", "prompt"):
        _expect(isinstance(given.get(name), str) and bool(given[name].strip()), name, "a text that is not empty")
    key = given.get("submission_key")
    is_key = key is None or (isinstance(key, str) and 0 < len(key) <= LONGEST_KEY)
    _expect(is_key, "submission_key", f"a text of 1 to {LONGEST_KEY} characters, or left out")
    shown = given.get("client_price")
    is_price = shown is None or (type(shown) is int and 0 <= shown <= MAX_INTEGER)
    _expect(is_price, "client_price", "a whole number from 0, in the currency's smallest unit")
    number = given.get("generation", 1)
    _expect(type(number) is int and 1 <= number <= 10_000, "generation", "a whole number from 1")
    for name in ("window_s", "give_up_after_s"):
        seconds = given.get(name, WINDOW_S)
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        _expect(is_number and 0 < seconds <= LONGEST_S, name, f"seconds above 0, up to {LONGEST_S}")
    least = given.get("give_up_after_s", GIVE_UP_S) / MOST_WINDOWS
    _expect(
        given.get("window_s", WINDOW_S) >= least, "window_s", f"{least:g} seconds at least, for that give_up_after_s"
    )


def check_names(given: Any) -> None:
    """Refuse a field that the input does not have: it would be ignored, and a slip of the pen would cost money.

    Args:
        given: The input, as the job was given it.

    Raises:
        PayloadInvalid: There is such a field; all of them are named, with what they may have meant.
    """
    known = Generation.__annotations__
    unknown = (
        [str(name) for name in cast("dict[Any, Any]", given) if name not in known] if isinstance(given, dict) else []
    )
    if not unknown:
        return
    near = {name: get_close_matches(name[:100], known, 1) for name in unknown[:MOST_NAMES]}
    told = ", ".join(f"{name[:100]}{f' (did you mean {close[0]}?)' if close else ''}" for name, close in near.items())
    raise PayloadInvalid(
        f"the input has no field {told}", next_step=f"it has: {', '.join(known)}", path=f"$.{unknown[0][:100]}"
    )


def submission_key(job: Generation, request: Mapping[str, Any]) -> str:
    """What makes it the same submission: the given key, or a digest of provider and request."""
    return job.get("submission_key") or digest({"provider": job["provider"], "request": dict(request)})


def _expect(holds: bool, field: str, wanted: str) -> None:
    if not holds:
        raise PayloadInvalid(
            f"the input's field {field} must be {wanted}", next_step="See docs/paid-jobs.md.", path=f"$.{field}"
        )
