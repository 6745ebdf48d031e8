"""Asking before something is deleted or started that cannot be undone."""

from __future__ import annotations

import sys

import click

yes_option = click.option("--yes", is_flag=True, help="Do not ask; needed where nobody can be asked.")


def require_consent(question: str, *, yes: bool) -> None:
    """Ask on the terminal; whoever cannot be asked must have said `--yes`.

    Raises:
        click.UsageError: There is no terminal, and no `--yes`.
        click.Abort: The answer was no.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(f"{question} There is no terminal to ask on; say --yes.")
    click.confirm(question, abort=True, err=True)
