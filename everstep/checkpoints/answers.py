"""What a person's decision means to the graph that asked.

Three shapes are read: the request of LangChain's human-in-the-loop middleware (`action_requests`, answered by
`decisions`), the older Agent Inbox request (`action_request`, answered by a list of `{type, args}`), and any other
value of a graph's own `interrupt()`, answered by a plain value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from everstep.checkpoints.provider_status import SUBMIT
from everstep.errors import ReviewAnswerInvalid

DECISIONS = ("approve", "edit", "respond", "reject")
MISSING: Any = object()
DEEPEST = 200
"""How deep an answer may be nested; LangGraph's serializer takes some hundred levels, the state around it included."""
_INBOX_TYPES = {"approve": "accept", "edit": "edit", "respond": "response", "reject": "ignore"}
_INBOX_FLAGS = {"approve": "allow_accept", "edit": "allow_edit", "respond": "allow_respond", "reject": "allow_ignore"}


def choices(kind: str, value: Any) -> dict[str, str]:
    """The decisions a review takes, and what each would do."""
    if kind == "effect" and isinstance(value, Mapping) and cast("Mapping[str, Any]", value).get("effect") == SUBMIT:
        return {
            "approve": "the provider took it; --value is its id of the task there, as JSON",
            "reject": "it is not there; it will be submitted again",
        }
    if kind == "effect":
        return {"approve": "it happened; --value is its result", "reject": "it did not happen; it will be called again"}
    if kind == "error":
        return {"approve": "try again from the last checkpoint", "reject": "the job has failed"}
    if kind == "fingerprint":
        return {"approve": "go on with the changed graph", "reject": "the job has failed"}
    if kind == "policy":
        back = {"respond": "give it back to its graph with the words in --value"} if feedback_of(value) else {}
        return {"approve": "accept the result as it is", **back, "reject": "the job has failed"}
    if kind == "budget":
        return {"approve": 'go on; --value may raise limits, such as {"steps": 200}', "reject": "the job has failed"}
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


def feedback_of(value: Any) -> Mapping[str, Any] | None:
    """Where the words of a person go who gives a job back to its graph: `channel` and `form`; None if they cannot."""
    return cast("Mapping[str, Any]", value).get("feedback") if isinstance(value, Mapping) else None


def words(answer: Any, reason: str | None) -> str:
    """The words for the graph: the `--value`, or else the reason.

    Raises:
        ReviewAnswerInvalid: There are none.
    """
    said = reason if answer is MISSING else answer
    if not isinstance(said, str) or not said.strip():
        raise ReviewAnswerInvalid(
            "respond needs words for the graph", next_step="give them as a JSON string: --value '\"…\"'"
        )
    return said


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
    if (request := _middleware_request(value)) is not None:
        return _middleware_answer(request, decision, answer, reason)
    if _inbox_request(value) is not None:
        return [_inbox_answer(decision, answer, reason)]
    if answer is not MISSING:
        return answer
    if decision in ("edit", "respond"):
        raise ReviewAnswerInvalid(f"{decision} needs a value", next_step="give it with --value JSON")
    return decision == "approve"


def decision_of(resume: Any) -> tuple[str, Any, str | None]:
    """The decision, its value and its reason in what a client resumes with, where no graph's code reads it.

    `true` and `false` approve and reject; the forms of LangChain's middleware and of Agent Inbox are understood.

    Raises:
        ReviewAnswerInvalid: It is none of these.
    """
    if isinstance(resume, bool):
        return ("approve" if resume else "reject"), MISSING, None
    one = single(resume)
    said = str(one.get("type"))
    kind = {given: decision for decision, given in _INBOX_TYPES.items()}.get(said, said)
    if kind not in DECISIONS:
        raise ReviewAnswerInvalid(
            "this question takes a decision",
            next_step='resume with true, false, or {"decisions": [{"type": "approve" or "reject"}]}',
        )
    value: Any = one.get("value", one.get("args", one.get("edited_action", MISSING)))
    reason = one.get("message", one.get("reason"))
    return kind, MISSING if value is None else value, reason if isinstance(reason, str) else None


def single(resume: Any) -> Mapping[str, Any]:
    """The one decision in what a client resumes with, bare or in a list; empty if there is not just one."""
    if isinstance(resume, Mapping) and "decisions" in resume:
        resume = cast("Mapping[str, Any]", resume)["decisions"]
    if isinstance(resume, list) and len(cast("list[Any]", resume)) == 1:
        resume = cast("list[Any]", resume)[0]
    return cast("Mapping[str, Any]", resume) if isinstance(resume, Mapping) else {}


def edited_arguments(value: Any, action: str) -> Mapping[str, Any] | None:
    """The arguments in the value of an edit: alone, or with the action's name as the middleware and Agent Inbox do.

    Returns:
        None: there are none, or they are another action's.
    """
    if not isinstance(value, Mapping):
        return None
    edited = cast("Mapping[str, Any]", value)
    for name in ("name", "action"):
        if set(edited) == {name, "args"}:
            args = edited["args"]
            return cast("Mapping[str, Any]", args) if edited[name] == action and isinstance(args, Mapping) else None
    return edited


def require_storable(value: Any) -> None:
    """Refuse an answer that no graph could go on with: the failure would come again with each try of the job.

    Raises:
        ReviewAnswerInvalid: It holds an integer beyond 64 bits, or lies in more than `DEEPEST` levels.
    """
    level, depth = [value], 0
    while level:
        if depth > DEEPEST:
            raise ReviewAnswerInvalid(
                f"the answer is nested more than {DEEPEST} levels deep", next_step="give it as a text of JSON"
            )
        inner = list[Any]()
        for one in level:
            if isinstance(one, int) and not -(2**63) <= one < 2**64:
                raise ReviewAnswerInvalid(
                    "the answer holds an integer beyond 64 bits, which no state can", next_step="give it as a text"
                )
            if isinstance(one, Mapping):
                inner += cast("Mapping[str, Any]", one).values()
            elif isinstance(one, list):
                inner += cast("list[Any]", one)
        level, depth = inner, depth + 1


def _is_request(value: Any) -> bool:
    return _middleware_request(value) is not None or _inbox_request(value) is not None


def _allowed(value: Any) -> set[str]:
    if (request := _middleware_request(value)) is not None:
        return set[str]().union(*_allowed_for_actions(request))
    if (request := _inbox_request(value)) is not None:
        flags = cast("Mapping[str, Any]", request.get("config") or {})
        return {decision for decision, flag in _INBOX_FLAGS.items() if flags.get(flag, True)}
    return set(DECISIONS)


def _allowed_for_actions(value: Mapping[str, Any]) -> list[set[str]]:
    """The decisions each action of a middleware's request takes: those of its configuration, by name."""
    configs = cast("list[Mapping[str, Any]]", value.get("review_configs") or [])
    known: set[str] = set(DECISIONS)
    by_name = {
        config.get("action_name"): known.intersection(cast("list[str]", config.get("allowed_decisions") or ())) or known
        for config in configs
    }
    actions = cast("list[Mapping[str, Any]]", value["action_requests"])
    return [by_name.get(action.get("name"), known) for action in actions]


def _middleware_request(value: Any) -> Mapping[str, Any] | None:
    """The value as a request of the middleware; None if it only looks like one, and is answered as any other value."""
    if not isinstance(value, Mapping):
        return None
    request = cast("Mapping[str, Any]", value)
    actions, configs = _objects(request.get("action_requests")), _objects(request.get("review_configs") or [])
    return request if actions and configs is not None and all(map(_is_allowance, configs)) else None


def _is_allowance(config: Mapping[str, Any]) -> bool:
    allowed: Any = config.get("allowed_decisions") or []
    if not isinstance(allowed, list) or not isinstance(config.get("action_name"), str | None):
        return False
    return all(isinstance(one, str) for one in cast("list[Any]", allowed))


def _objects(values: Any) -> list[Mapping[str, Any]] | None:
    """The value as a list of objects; None if it is none."""
    if not isinstance(values, list) or not all(isinstance(one, Mapping) for one in cast("list[Any]", values)):
        return None
    return cast("list[Mapping[str, Any]]", values)


def _inbox_request(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, list) and len(cast("list[Any]", value)) == 1:
        value = cast("list[Any]", value)[0]
    if not isinstance(value, Mapping):
        return None
    request = cast("Mapping[str, Any]", value)
    fits = isinstance(request.get("action_request"), Mapping) and isinstance(request.get("config"), Mapping | None)
    return request if fits else None


def _middleware_answer(value: Mapping[str, Any], decision: str, answer: Any, reason: str | None) -> dict[str, Any]:
    actions = cast("list[Mapping[str, Any]]", value["action_requests"])
    extra = {"argument_digest": value["argument_digest"]} if "argument_digest" in value else {}
    allowed = _allowed_for_actions(value)
    if isinstance(answer, Mapping) and "decisions" in answer:
        decisions = cast("Mapping[str, Any]", answer)["decisions"]
        _check_decisions(decisions, allowed)
        if _is_approval(value):
            _check_edit(actions[0], decisions[0].get("edited_action"))
        return {**cast("dict[str, Any]", answer), **extra}
    if not all(decision in some for some in allowed):
        raise ReviewAnswerInvalid(
            f"not every one of the {len(actions)} actions takes {decision!r}",
            next_step='decide each: --value \'{"decisions": [{"type": …}, …]}\'',
        )
    one: dict[str, Any] = {"type": decision}
    if decision == "approve" and answer is not MISSING and answer is not None:
        raise ReviewAnswerInvalid(
            "approve takes no value here: it would be for the arguments as they were asked about",
            next_step="approve without a value, or edit with the changed arguments",
        )
    if decision == "edit":
        if len(actions) != 1 or not isinstance(answer, Mapping):
            raise ReviewAnswerInvalid(
                "edit needs the changed arguments of one action as an object",
                next_step='give --value \'{"argument": …}\'; for several actions give {"decisions": […]}',
            )
        edited = cast("Mapping[str, Any]", answer)
        named = set(edited) == {"name", "args"}
        one["edited_action"] = dict(edited) if named else {"name": actions[0].get("name"), "args": dict(edited)}
        if _is_approval(value):
            _check_edit(actions[0], one["edited_action"])
    elif decision == "respond":
        if answer is MISSING and reason is None:
            raise ReviewAnswerInvalid("respond needs a value", next_step="give it with --value JSON")
        one["message"] = reason if answer is MISSING else answer
    elif decision == "reject" and (reason is not None or answer is not MISSING):
        one["message"] = reason if answer is MISSING else answer
    return {"decisions": [dict(one) for _ in actions], **extra}


def _check_decisions(decisions: Any, allowed: list[set[str]]) -> None:
    """One decision for each action, in their order, of a type it takes."""
    if not isinstance(decisions, list) or len(cast("list[Any]", decisions)) != len(allowed):
        raise ReviewAnswerInvalid(
            f"decisions must be a list of {len(allowed)}, one for each action",
            next_step="decide every action, in order",
        )
    for index, (one, types) in enumerate(zip(cast("list[Any]", decisions), allowed, strict=True)):
        kind = cast("Mapping[str, Any]", one).get("type") if isinstance(one, Mapping) else None
        if kind not in types:
            raise ReviewAnswerInvalid(
                f"decisions[{index}] is of type {kind!r}, which its action does not take",
                next_step=f"it takes: {', '.join(decision for decision in DECISIONS if decision in types)}",
            )
        if kind == "edit" and not isinstance(cast("Mapping[str, Any]", one).get("edited_action"), Mapping):
            raise ReviewAnswerInvalid(
                f"decisions[{index}] edits without an edited_action",
                next_step='give {"type": "edit", "edited_action": {"name": …, "args": {…}}}',
            )


def _is_approval(request: Mapping[str, Any]) -> bool:
    """Whether an effect asks, which is called with just the arguments of the answer."""
    return isinstance(request.get("approval"), Mapping)


def _check_edit(action: Mapping[str, Any], edited: Mapping[str, Any] | None) -> None:
    """An edit names the same action and all of its arguments, and no others."""
    if edited is None:
        return
    names, args = set(cast("Mapping[str, Any]", action["args"])), edited.get("args")
    if edited.get("name", action["name"]) != action["name"] or not isinstance(args, Mapping) or set(args) != names:  # pyright: ignore[reportUnknownArgumentType]
        raise ReviewAnswerInvalid(
            f"an edit of {action['name']} gives all of its arguments, and no others",
            next_step=f"give an object with: {', '.join(sorted(names))}",
        )


def _inbox_answer(decision: str, answer: Any, reason: str | None) -> dict[str, Any]:
    if decision in ("edit", "respond") and answer is MISSING:
        raise ReviewAnswerInvalid(f"{decision} needs a value", next_step="give it with --value JSON")
    return {"type": _INBOX_TYPES[decision], "args": reason if answer is MISSING else answer}
