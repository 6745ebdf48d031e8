"""A message gateway that sends nothing: an outbox file stands in for the provider, so that nobody is ever written to.

Like many providers it cannot be asked what was sent and does not know idempotency keys, so a message whose sending was
interrupted is for a person to settle.
"""

from __future__ import annotations

import os
from pathlib import Path

from everstep.nodes.effect import effect


@effect("announce.send")
def announce(outbox: str, message: str) -> int:
    """Send a message: append it to the outbox.

    Args:
        outbox: The outbox file; its folder must exist.
        message: One line of text.

    Returns:
        How many characters were sent.
    """
    line = " ".join(message.split())
    with open(outbox, "a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())
    return len(line)


def sent(outbox: Path) -> list[str]:
    """What the outbox holds, oldest first; for whoever looks from outside."""
    return outbox.read_text(encoding="utf-8").splitlines() if outbox.exists() else []
