"""`review`: ask a person, inside a node; LangGraph's `interrupt` with the payload that Agent Inbox reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from langgraph.types import interrupt

from everstep.checkpoints.jobs import loose_digest

DecisionType = Literal["approve", "edit", "respond", "reject"]


@dataclass(frozen=True)
class Decision:
    """What a person decided.

    Attributes:
        type: `approve`, `edit`, `respond` or `reject`.
        args: The arguments to act with: the asked ones, or the edited ones.
        message: The person's words: the reason of a rejection, or the response.
    """

    type: DecisionType
    args: dict[str, Any]
    message: str | None

    @property
    def approved(self) -> bool:
        """Whether to act (with `args`)."""
        return self.type in ("approve", "edit")


def review(
    question: str,
    *,
    action: str = "continue",
    args: Mapping[str, Any] | None = None,
    allow: Sequence[DecisionType] = ("approve", "edit", "respond", "reject"),
) -> Decision:
    """Pause until a person decided. The job goes to `review`; nothing but an answer resumes it.

    The node's body runs again up to here when the answer comes, so ask before you act, and keep effects in `effect`.

    Args:
        question: What the person reads.
        action: Name of what would be done.
        args: Its exact arguments; JSON data. The answer is bound to them: other arguments are asked about anew.
        allow: The decisions offered.
    """
    arguments = dict(args or {})
    request = {
        "action_requests": [{"name": action, "args": arguments, "description": question}],
        "review_configs": [{"action_name": action, "allowed_decisions": list(allow)}],
    }
    digest = loose_digest(request)
    given: dict[str, Any] = {"argument_digest": None}
    note: dict[str, str] = {}
    while given.get("argument_digest", digest) != digest:
        answer = interrupt({**request, "argument_digest": digest, **note})
        given = cast("dict[str, Any]", answer if isinstance(answer, Mapping) else {"decisions": answer})
        note = {"note": "asked anew: an earlier answer was given for other arguments"}
    decision = given["decisions"][0] if isinstance(given.get("decisions"), list) else given
    edited = cast("dict[str, Any]", decision.get("edited_action") or {})
    return Decision(decision["type"], dict(edited.get("args", arguments)), decision.get("message"))
