"""Tokens of a job while it runs, for progress displays; needs no OpenTelemetry and no configuration."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.outputs import LLMResult

from everstep.observability.usage import usage_of


@dataclass(frozen=True)
class Tokens:
    """What the models of a job have used so far.

    Attributes:
        input_tokens: Tokens of all prompts.
        output_tokens: Tokens of all answers.
        model_calls: Finished model calls, also those whose provider told no usage.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    model_calls: int = 0


class TokenCounter(BaseCallbackHandler):
    """A callback that adds up the tokens of every model call below it: sync, async and streaming.

    One counter serves one job: put it into `config["callbacks"]` of each of its runs.
    """

    run_inline = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens = Tokens()

    def snapshot(self) -> Tokens:
        """The sums so far; may be called from any thread at any time."""
        with self._lock:
            return self._tokens

    def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        usage = usage_of(response)
        with self._lock:
            self._tokens = Tokens(
                input_tokens=self._tokens.input_tokens + (usage.input_tokens or 0),
                output_tokens=self._tokens.output_tokens + (usage.output_tokens or 0),
                model_calls=self._tokens.model_calls + 1,
            )
