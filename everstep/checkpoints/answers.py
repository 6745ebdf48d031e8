"""What a person's decision means to the graph that asked.

Three shapes are read: the request of LangChain's human-in-the-loop middleware (`action_requests`, answered by
`decisions`), the older Agent Inbox request (`action_request`, answered by a list of `{type, args}`), and any other
value of a graph's own `interrupt()`, answered by a plain value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from everstep.errors import ReviewAnswerInvalid

DECISIONS = ("approve", "edit", "respond", "reject")
MISSING: Any = object()
_INBOX_TYPES = {"approve": "accept", "edit": "edit", "respond": "response", "reject": "ignore"}
_INBOX_FLAGS = {"approve": "allow_accept", "edit": "allow_edit", "respond": "allow_respond", "reject": "allow_ignore"}


def choices(kind: str, value: Any) -> dict[str, str]:
    """The decisions a review takes, and what each would do."""
    if kind == "effect":
        return {"approve": "it happened; --value is its result", "reject": "it did not happen; it will be called again"}
    if kind == "error":
        return {"approve": "try again from the last checkpoint", "reject": "the job has failed"}
    if kind == "fingerprint":
        return {"approve": "go on with the changed graph", "reject": "the job has failed"}
    if kind == "breakpoint":
        return {"approve": "go on past the breakpoint", "reject": "the job has failed"}
    allowed = _allowed(value)
    meaning = {
        "approve": "yes, as asked" if _is_request(value) else "resume with --value, or true",
        "edit": "yes, with the arguments in --value" if _is_request(value) else "resume with --value",
        "respond": "answer in the place of the action with --value" if _is_request(value) else "resume with --value",
        "reject": "no; --reason says why" if _is_request(value) else "resume with --value, or false",
    }
    return {decision: meaning[decision] for decision in DECISIONS if decision in allowed}


def resume_value(value: Any, decision: str, answer: Any, reason: str | None) -> Any:
    """The value `interrupt()` returns in the graph.

    Args:
        value: What the graph asked.
        decision: One of `DECISIONS`.
        answer: The `--value` that was given, or `MISSING`.
        reason: Why, in the person's words.

    Raises:
        ReviewAnswerInvalid: The decision is not offered, or its value is missing or of the wrong shape.
    """
    if decision not in _allowed(value):
        raise ReviewAnswerInvalid(
            f"this review does not take {decision!r}", next_step=f"it takes: {', '.join(sorted(_allowed(value)))}"
        )
    if isinstance(value, Mapping) and "action_requests" in value:
        return _middleware_answer(cast("Mapping[str, Any]", value), decision, answer, reason)
    if _inbox_request(value) is not None:
        return [_inbox_answer(decision, answer, reason)]
    if answer is not MISSING:
        return answer
    if decision in ("edit", "respond"):
        raise ReviewAnswerInvalid(f"{decision} needs a value", next_step="give it with --value JSON")
    return decision == "approve"


def _is_request(value: Any) -> bool:
    return (isinstance(value, Mapping) and "action_requests" in value) or _inbox_request(cast("Any", value)) is not None


def _allowed(value: Any) -> set[str]:
    if isinstance(value, Mapping) and "action_requests" in value:
        configs = cast("list[Mapping[str, Any]]", cast("Mapping[str, Any]", value).get("review_configs") or [])
        allowed = [set(cast("list[str]", config.get("allowed_decisions") or DECISIONS)) for config in configs]
        return {decision for decision in DECISIONS if all(decision in some for some in allowed)}
    request = _inbox_request(value)
    if request is not None:
        flags = cast("Mapping[str, Any]", request.get("config") or {})
        return {decision for decision, flag in _INBOX_FLAGS.items() if flags.get(flag, True)}
    return set(DECISIONS)


def _inbox_request(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, list) and len(cast("list[Any]", value)) == 1:
        value = cast("list[Any]", value)[0]
    if isinstance(value, Mapping) and "action_request" in value:
        return cast("Mapping[str, Any]", value)
    return None


def _middleware_answer(value: Mapping[str, Any], decision: str, answer: Any, reason: str | None) -> dict[str, Any]:
    actions = cast("list[Mapping[str, Any]]", value["action_requests"])
    extra = {"argument_digest": value["argument_digest"]} if "argument_digest" in value else {}
    if isinstance(answer, Mapping) and "decisions" in answer:
        return {**cast("dict[str, Any]", answer), **extra}
    one: dict[str, Any] = {"type": decision}
    if decision == "edit":
        if len(actions) != 1 or not isinstance(answer, Mapping):
            raise ReviewAnswerInvalid(
                "edit needs the changed arguments of one action as an object",
                next_step='give --value \'{"argument": …}\'; for several actions give {"decisions": […]}',
            )
        edited = cast("Mapping[str, Any]", answer)
        named = set(edited) == {"name", "args"}
        one["edited_action"] = dict(edited) if named else {"name": actions[0].get("name"), "args": dict(edited)}
    elif decision == "respond":
        if answer is MISSING and reason is None:
            raise ReviewAnswerInvalid("respond needs a value", next_step="give it with --value JSON")
        one["message"] = reason if answer is MISSING else answer
    elif decision == "reject" and (reason is not None or answer is not MISSING):
        one["message"] = reason if answer is MISSING else answer
    return {"decisions": [dict(one) for _ in actions], **extra}


def _inbox_answer(decision: str, answer: Any, reason: str | None) -> dict[str, Any]:
    if decision in ("edit", "respond") and answer is MISSING:
        raise ReviewAnswerInvalid(f"{decision} needs a value", next_step="give it with --value JSON")
    return {"type": _INBOX_TYPES[decision], "args": reason if answer is MISSING else answer}
