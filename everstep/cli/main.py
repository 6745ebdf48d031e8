"""`everstep`: the command line. Commands import what they need when they run, so that help is instant.

Exit codes: 0 fine; 1 a job failed, or a check did; 2 a job waits in review; above 63 the command itself could not do
its work, after BSD `sysexits.h`: 64 wrong usage or input, 65 a conflict or bad data, 66 not found, 69 the record is
unavailable, 78 wrong configuration.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from copy import copy
from io import TextIOWrapper
from typing import Any

import click

from everstep.cli.views import harmless
from everstep.errors import EX_SOFTWARE, EX_USAGE, EverstepError, FileNotWritten
from everstep.observability import logs

_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""What a write to stdout fails with, where it leads to a file."""


class ReaderGone(Exception):
    """Whoever read stdout stopped reading, as in `everstep jobs | head -1`."""


class Commands(click.Group):
    """The commands in the order a newcomer meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click would make it exit code 1, which says that a job failed
            raise ReaderGone from error


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="everstep", prog_name="everstep")
@click.pass_context
def everstep(context: click.Context) -> None:
    """Agents that never lose a step: run any LangGraph graph as a durable job.

    Kill the machine at step 40 and the job goes on at step 41, with nothing done twice.

    Exit codes: 0 fine, 1 a job or a check failed, 2 a job waits in review, 64 and above the command could not
    do its work (64 usage or input, 65 conflict or bad data, 66 not found, 69 record unavailable, 78 configuration).
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def _register() -> None:
    from everstep.cli import (
        backup,
        budget,
        classify,
        crash_test,
        credits,
        deliveries,
        demo,
        dlq,
        doctor,
        emit,
        jobs,
        keys,
        metrics,
        prices,
        provider,
        prune,
        quote,
        review,
        schedules,
        score,
        serve,
        services,
        shape,
        submit,
        trace,
        traces,
        triggers,
        worker,
    )

    commands: tuple[click.Command, ...] = (
        submit.submit,
        serve.up,
        serve.server,
        worker.worker,
        jobs.jobs,
        jobs.show,
        jobs.history,
        trace.trace,
        traces.traces,
        score.score,
        review.review,
        budget.budget,
        prices.prices,
        quote.quote,
        credits.credits,
        jobs.retry,
        jobs.cancel,
        services.services,
        emit.emit,
        emit.signals,
        schedules.schedules,
        shape.shape,
        dlq.dlq,
        deliveries.deliveries,
        provider.provider,
        triggers.triggers,
        classify.classify,
        crash_test.crash_test,
        doctor.doctor,
        keys.keys,
        metrics.metrics,
        backup.backup,
        prune.prune,
        demo.demo,
    )
    for command in commands:
        everstep.add_command(command)
    dev = copy(serve.up)  # as LangGraph's own command line calls it
    dev.hidden = True
    everstep.add_command(dev, "dev")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a message with half a character in it can be read, too
    _register()
    arguments = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in arguments
    try:
        logs.configure()
        code = everstep.main(args=arguments, prog_name="everstep", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except EverstepError as error:
        _report({**error.as_dict(), "next_step": error.next_step or _look_closer(error.ids)}, as_json)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "everstep"
        _report({"code": "usage", "message": error.format_message(), "next_step": f"{command} --help"}, as_json)
        sys.exit(EX_USAGE)
    except ReaderGone:
        _forget_stdout()
        sys.exit(141)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NOT_WRITTEN and error.filename is None:
            _forget_stdout()
            full = FileNotWritten(f"stdout cannot be written: {error.strerror}", next_step="give it a place with room")
            _report(full.as_dict(), as_json)
            sys.exit(full.exit_code)
        if os.environ.get("EVERSTEP_DEBUG"):
            raise
        what = {"code": "internal_error", "message": f"{type(error).__name__}: {error}"}
        _report({**what, "next_step": "run it again with EVERSTEP_DEBUG=1 for the traceback, and report it"}, as_json)
        sys.exit(EX_SOFTWARE)


def _forget_stdout() -> None:
    """What could not be written is not tried again when Python ends."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _look_closer(ids: dict[str, Any]) -> str:
    if "review" in ids:
        return f"look at it with: everstep review show {ids['review']}"
    if "job" in ids:
        return f"look at it with: everstep show {ids['job']}"
    return "everstep doctor tells what is wrong"


def _report(error: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"error": error}), err=True)
        return
    click.echo(f"error: {harmless(error['message'], keep_lines=True)} [{error['code']}]", err=True)
    if error.get("next_step"):
        click.echo(f"next:  {harmless(error['next_step'], keep_lines=True)}", err=True)


if __name__ == "__main__":
    main()
