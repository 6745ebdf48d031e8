"""A record that was migrated once, of which others are copies: most tests are not about how a record is made."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path
from uuid import uuid4

from everstep.checkpoints import sqlite
from everstep.checkpoints.store import Store


@cache
def content() -> bytes:
    """The file of an empty record."""
    with tempfile.TemporaryDirectory() as elsewhere:
        path = Path(elsewhere) / "record.db"
        Store.open(f"sqlite:///{path}").close()
        return path.read_bytes()


def share() -> None:
    """From now on a file that this process makes begins as such a copy."""
    empty, migrate = content(), sqlite._migrate

    def copy(path: Path) -> None:
        whole = path.with_name(f".{uuid4().hex}")
        try:
            whole.write_bytes(empty)
            os.link(whole, path)  # whole or not at all, for whoever opens it at the same time
        except OSError:  # it is there already, or cannot be: what is done then is what is tested
            migrate(path)
        finally:
            whole.unlink(missing_ok=True)

    sqlite._migrate = copy
