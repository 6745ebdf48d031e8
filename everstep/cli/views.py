"""What commands show of jobs, effects and reviews: as JSON, whose fields other programs rely on, and for people."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from everstep.clock import rfc3339

if TYPE_CHECKING:
    from everstep.checkpoints.budgets import Account
    from everstep.checkpoints.effects import Effect
    from everstep.checkpoints.jobs import Job
    from everstep.checkpoints.reviews import Review
    from everstep.checkpoints.services import Service
    from everstep.checkpoints.store import Store
    from everstep.checkpoints.waits import Wait

STATUS_COLOURS = {
    "pending": "cyan",
    "running": "blue",
    "retry": "yellow",
    "review": "magenta",
    "done": "green",
    "failed": "red",
}


def print_json(value: Any) -> None:
    """Write a value to stdout as JSON, with escapes if stdout cannot hold a character of it."""
    written = json.dumps(value, indent=2, ensure_ascii=False)
    try:
        written.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        written = json.dumps(value, indent=2)
    click.echo(written)


def job_view(job: Job, account: Account | None = None) -> dict[str, Any]:
    """A job, as `jobs --json` and `show --json` give it; see `checkpoints.job_view`."""
    from everstep.checkpoints import job_view as view

    return view.of(job, account)


def effect_view(effect: Effect) -> dict[str, Any]:
    """An effect, as `show --json` gives it; see `checkpoints.views`."""
    from everstep.checkpoints import views

    return views.effect(effect)


def review_views(store: Store, reviews: Sequence[tuple[Review, str]]) -> list[dict[str, Any]]:
    """Reviews with the ids of their jobs, as `show --json` and `review --json` give them; see `checkpoints.views`."""
    from everstep.checkpoints import views

    return store.read(lambda connection: views.reviews(connection, reviews))


def next_action(
    job: Job,
    reviews: list[Review],
    out: Sequence[Service] = (),
    waits: Sequence[Wait] = (),
    unsubmitted: Sequence[str] = (),
) -> str:
    """What a person can do about the job now.

    Args:
        job: The job.
        reviews: Its reviews.
        out: The services it needs that are out.
        waits: What its nodes wait for.
        unsubmitted: Ids of the paid tasks that it was charged for and never submitted.
    """
    if job.status in ("pending", "retry") and out:
        names = " and ".join(f"{service.name} ({service.symptom})" for service in out)
        when = rfc3339(max(service.opens_at or 0 for service in out))
        return (
            f"nothing: it waits for {names}, tried next at {when} (works again? everstep services open {out[0].name})"
        )
    open_ = [review for review in reviews if review.status == "open"]
    if job.status == "pending" and job.waits_for_its_turn:
        return f"nothing: it begins when the job before it on thread {job.thread_id} is over"
    waiting = [wait for wait in waits if wait.state == "open"]
    if job.status == "pending" and waiting and job.next_run_at > waiting[0].created_at:
        told = "; ".join(wait.told() for wait in waiting)
        signal = next(
            (wait.signal for wait in waiting if wait.signal and not wait.signal.startswith("everstep.")), None
        )
        if open_:
            return f"answer: everstep review show {open_[0].public_id}; it also waits {told}"
        return f"nothing: it waits {told}" + ("" if signal is None else f" (now: everstep emit {signal})")
    if job.status == "pending":
        return "a worker will take it: everstep worker"
    if job.status == "running":
        if job.cancel_requested_at is not None:
            return "its worker will stop it (cancellation was requested)"
        return f"nothing: a worker has it until {rfc3339(job.lease_until)}, and then any worker may take it over"
    if job.status == "retry":
        return f"nothing: it runs again at {rfc3339(job.next_run_at)} (now: everstep retry {job.public_id})"
    if job.status == "review" and open_:
        return f"answer: everstep review show {open_[0].public_id}"
    if job.status == "failed" and json.loads(job.error_json or "{}").get("code") == "cancelled":
        return f"nothing: it was cancelled (run it after all: everstep retry {job.public_id})"
    if job.status == "failed":
        from everstep.checkpoints.views import GIVE_BACK

        back = "; ".join(f"{GIVE_BACK} {task}" for task in unsubmitted)
        given = f"; or have back what was charged for what it never submitted: {back}" if back else ""
        again = f"then: everstep retry {job.public_id}"
        advice = str(json.loads(job.error_json or "{}").get("next_step") or "")
        return f"{advice if advice.endswith(again) else f'mend the cause, {again}'}{given}"
    return "nothing"


def short_error(error: dict[str, Any]) -> str:
    """An error as it is stored with a job, in a few words: the type, without its module, and the message."""
    kind = str(error.get("type") or error["code"]).rpartition(".")[2]
    return f"{kind}: {error['message']}"


def text(value: Any, width: int = 200) -> str:
    """A value in one short line that cannot steer a terminal."""
    line = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = " ".join(line.split())
    return harmless(line if len(line) <= width else line[: width - 1] + "…")


def harmless(line: str, *, keep_lines: bool = False) -> str:
    """Text of others for a terminal: what could steer it, or turn its direction, is replaced.

    Args:
        line: The text; a break in it becomes a space, and half a character is left to the stream, which escapes it.
        keep_lines: Whether line feeds stay.
    """
    if line.isascii() and line.isprintable():
        return line
    return "".join(one if keep_lines and one == "\n" else _harmless(one) for one in line)


def _harmless(one: str) -> str:
    kind = unicodedata.category(one)
    if one in "\n\v\f\r\x85" or kind in ("Zl", "Zp"):
        return " "
    return "�" if kind in ("Cc", "Cf") and one != "\t" else one
