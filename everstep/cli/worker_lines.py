"""What a worker of the command line says of its jobs: a line for people, a line of JSON, or a line of the log."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import click

from everstep.cli.json_lines import JsonLines
from everstep.cli.views import STATUS_COLOURS, job_view, short_error, text

if TYPE_CHECKING:
    from everstep.checkpoints.budgets import Account
    from everstep.checkpoints.jobs import Job
    from everstep.checkpoints.store import Store

logger = logging.getLogger("everstep.worker")

_LEAST_BYTES = 1024
"""What a job's line takes beside its input and result, bytes."""


class WorkerLines:
    """The worker's listener.

    Args:
        store: The record.
        json_lines: Where lines of JSON go; None: nobody wants them.
        log_as: How the log looks: `console` or `json`.

    Attributes:
        worker: The worker's id, once there is one.
    """

    def __init__(self, store: Store, json_lines: JsonLines | None, log_as: str) -> None:
        self._store = store
        self._json_lines = json_lines
        self._log_as = log_as
        self.worker = ""

    def __call__(self, event: str, job: Job) -> None:
        """Tell that a job was claimed, or what it was settled as."""
        from everstep.runtime.run import about

        if self._json_lines is not None:
            size = _LEAST_BYTES + len(job.payload_json) + len(job.result_json or "")
            self._json_lines.say_later(lambda: {"event": event, **job_view(job, self._account(job))}, size)
            return
        detail = f"step {job.step}, attempt {job.attempts}"
        if event in ("failed", "retry", "review") and job.error_json:
            from everstep.observability.exception_chain import raised_at

            error = json.loads(job.error_json)
            detail += f": {text(short_error(error), 160)}"
            if place := raised_at(error):
                detail += f", at {text(place, 300)}"
        if self._log_as == "json":
            with about(job, worker=self.worker):
                logger.info("%s: %s", event, detail)
            return
        colour = STATUS_COLOURS.get(event, "white")
        click.echo(f"{click.style(f'{event:<8}', fg=colour)} {job.public_id} {job.graph}  {detail}", err=True)

    def _account(self, job: Job) -> Account | None:
        """What the job and its children used; without an answer of the record, the line tells what it used alone."""
        try:
            return self._store.accounts([job]).get(job.id)
        except Exception:  # whatever it is: a line that lacks something is better than none
            return None
