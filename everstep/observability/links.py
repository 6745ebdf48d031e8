"""Where a trace can be looked at: a link into Langfuse, or into whatever backend `EVERSTEP_TRACE_URL` names."""

from __future__ import annotations

import os
import threading
import time
from typing import Final

from everstep.errors import EverstepError
from everstep.observability import langfuse

TEMPLATE_VARIABLE: Final = "EVERSTEP_TRACE_URL"
_OTLP: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
PLACE: Final = "{trace_id}"
PATIENCE_S: Final = 1.5
"""How long a command waits for Langfuse to tell the project, all in all; the link works without it, too."""


def template() -> str | None:
    """The URL of a trace in another backend, with `{trace_id}` in it."""
    given = os.environ.get(TEMPLATE_VARIABLE, "").strip()
    return given if PLACE in given else None


class Links:
    """Makes links; asks Langfuse for the project in the background from now on, if there is one to ask."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._template = template()
        self._langfuse = None if self._template else langfuse.configured()
        self._deadline = time.monotonic() + patience_s
        self._patience_s = patience_s
        self._project: str | None = None
        self._asking: threading.Thread | None = None
        if self._langfuse is not None:
            self._asking = threading.Thread(target=self._ask, name="everstep-langfuse", daemon=True)
            self._asking.start()

    @property
    def lead_somewhere(self) -> bool:
        """Whether the environment names a backend, be it one whose pages nobody told."""
        return self._template is not None or self._langfuse is not None or any(map(os.environ.get, _OTLP))

    def to(self, trace_id: str) -> str | None:
        """The link to a trace; None if no backend is known. It waits once, and never long."""
        if self._template is not None:
            return self._template.replace(PLACE, trace_id)
        if self._langfuse is None:
            return None
        if self._asking is not None:
            self._asking.join(max(self._deadline - time.monotonic(), 0))
            self._asking = None
        host = langfuse.host(self._langfuse)
        return f"{host}/project/{self._project}/traces/{trace_id}" if self._project else f"{host}/trace/{trace_id}"

    def _ask(self) -> None:
        assert self._langfuse is not None
        try:
            self._project = langfuse.project(self._langfuse, self._patience_s).id
        except EverstepError:  # doctor tells why
            return
        except Exception:  # whatever else an SDK may raise, a link is not worth a failed command
            return
