"""What is to be cleaned up when the tests of this process end; `conftest.py` does it.

It cannot wait for `atexit`: the processes of pytest-xdist are killed when they take longer to exit than a moment.
"""

from __future__ import annotations

import atexit
from contextlib import ExitStack

AT_END = ExitStack()
"""Runs what was given to `callback`, the last first."""

atexit.register(AT_END.close)  # for what uses the support of the tests without running them
