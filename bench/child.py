"""A process of a benchmark: runs one function, starts when it is told to, and answers with JSON.

`python -m bench.child MODULE:FUNCTION JSON-ARGUMENTS`. It speaks over stdin and stdout, a line each: `ready`, then
`go` is waited for; `cpu` is answered with the processor time so far; `stop` asks it to end. Libraries that print do so
on stderr. It imports nothing but the standard library, so that the peers' environment needs no more.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from importlib import import_module
from typing import Any, TextIO


class Control:
    """What the function hears from the harness, and tells it.

    Attributes:
        stopped: Set when it shall end.
    """

    def __init__(self, said: TextIO, answers: TextIO) -> None:
        self._said, self._answers = said, answers
        self._going = threading.Event()
        self.stopped = threading.Event()
        threading.Thread(target=self._listen, name="bench-control", daemon=True).start()

    def ready(self) -> float:
        """Tell that all is set up, and wait for the word to go.

        Returns:
            The moment it came, seconds of the machine's monotonic clock, which all processes share.
        """
        self.tell("ready")
        self._going.wait()
        return time.monotonic()

    def tell(self, line: str) -> None:
        """Send a line."""
        self._answers.write(line + "\n")
        self._answers.flush()

    def _listen(self) -> None:
        for line in self._said:
            match line.strip():
                case "go":
                    self._going.set()
                case "cpu":
                    self.tell(json.dumps({"cpu": time.process_time(), "at": time.monotonic()}))
                case _:
                    break
        self._going.set()
        self.stopped.set()


def main(target: str, arguments: str) -> None:
    """Run `target` with `arguments` and print what it returns."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, _, function = target.partition(":")
    control = Control(sys.stdin, answers)
    result: Any = getattr(import_module(module), function)(control, **json.loads(arguments))
    control.tell(json.dumps({"result": result}))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads that a library left behind are nobody's concern


if __name__ == "__main__":
    main(*sys.argv[1:3])
