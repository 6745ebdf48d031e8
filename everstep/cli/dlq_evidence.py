"""What `everstep dlq` shows of a dead letter: as JSON, whose fields other programs rely on, and for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everstep.cli.exceptions import chain_lines
from everstep.cli.views import harmless, text
from everstep.counts import counted

if TYPE_CHECKING:
    from everstep.checkpoints.jobs import Job
    from everstep.checkpoints.store import Store


def letter_view(job: Job) -> dict[str, Any]:
    """A dead letter, as `dlq --json` gives it."""
    from everstep.checkpoints import views

    return views.letter(job)


def evidence_view(store: Store, job: Job) -> dict[str, Any]:
    """All that is known of a dead letter, as `dlq show --json` gives it."""
    from everstep.checkpoints import views

    return views.evidence(store, job)


def print_letter(view: dict[str, Any], *, verbose: bool) -> None:
    """Write what `evidence_view` gave for a person; `verbose`: with the places in libraries."""
    click.echo(f"job        {view['id']}  {click.style('failed', fg='red', bold=True)} at {view['failed_at']}")
    click.echo(
        f"graph      {text(view['graph'])}, step {view['step']}"
        + (f", in {text(view['node'])}" if view["node"] else "")
    )
    click.echo(f"ended by   {view['ended_by']}; {counted(view['attempts'], 'attempt')}")
    click.echo(f"announced  {view['announced_at'] or 'no'}")
    click.echo(f"input      {text(view['input'])}")
    links = view["chain"] or [view["error"]]
    sections: list[tuple[str, list[str]]] = [
        ("what went wrong", list(chain_lines([link for link in links if link], verbose=verbose))),
        (
            "last steps",
            [
                f"{step['created_at']}  step {step['step']}  next: {', '.join(step['next']) or '-'}"
                for step in view["steps"]
            ],
        ),
        (
            "effects",
            [
                f"{one['state']:<9}  {one['name']} {text(one['arguments'], 80)}  calls {one['calls']}"
                for one in view["effects"]
            ],
        ),
        (
            "reviews",
            [f"{one['id']}  {one['kind']}: {one['status']}  {text(one['value'], 100)}" for one in view["reviews"]],
        ),
        ("evidence", [line for row in view["evidence"] for line in _kept(row)]),
        ("traces", [f"leg {trace['leg']}: {trace['trace_id']}" for trace in view["traces"]]),
        ("next", view["next_actions"]),
    ]
    for title, lines in sections:
        if lines:
            click.secho(f"\n{title}", bold=True)
            for line in lines:
                click.echo(f"  {harmless(line)}")


def evidence_line(row: dict[str, Any], width: int) -> str:
    """A row of evidence in one line, without exceptions and the output of commands, which are shown elsewhere."""
    kept = f"{row['at']}  {row['kind']}, start {row['claim_no']}: "
    detail = {key: value for key, value in row["detail"].items() if key not in ("chain", "results")}
    return kept + (text(_death(detail), 300) if row["kind"] == "worker_death" else text(detail, width))


def _death(detail: dict[str, Any]) -> str:
    """How a process ended that held the job, in words."""
    worker, of_job = detail.get("worker"), "signal" in detail or "exit_code" in detail
    told = [f"{'its process' if of_job else f'worker {worker}'} {detail.get('how')} at step {detail.get('step')}"]
    if detail.get("node"):
        told.append(f"node {detail['node']}")
    if beside := detail.get("beside"):
        told.append(f"with {counted(beside, 'other job')}")
    if memory := detail.get("peak_memory_bytes"):
        told.append(f"{memory / 1e6:.0f} MB of memory at most")
    if deaths := detail.get("deaths"):
        told.append(f"death {deaths} in a row")
    return ", ".join(told)


def _kept(row: dict[str, Any]) -> list[str]:
    """A row of evidence; what verification commands wrote, as they wrote it."""
    lines = [evidence_line(row, 300)]
    for command in row["detail"].get("results", []):
        lines.append(f"  $ {command['command']}  (exit code {command['exit_code']})")
        lines.extend(f"    {line}" for line in str(command["output"]).splitlines())
    return lines
