"""Which chat model a node talks to: the one a job or the environment names, or the one the graph brings along.

`provider:name` goes through LangChain's `init_chat_model`, which is the optional extra `models`. Credentials come
from where the provider's package looks for them (its environment variables), never from a payload.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

from langchain_core.language_models import BaseChatModel

from everstep.errors import ModelUnavailable

VARIABLE = "EVERSTEP_MODEL"
"""Environment variable that names the model for jobs that name none."""


def choose_model(name: str | None, otherwise: Callable[[], BaseChatModel]) -> BaseChatModel:
    """The chat model to use.

    Args:
        name: `provider:name` as a job asked for it; None or "" asks for none, and `EVERSTEP_MODEL` decides.
        otherwise: Makes the model when neither names one.

    Raises:
        ModelUnavailable: The name is not understood, or the extra or the provider's package is not installed.
    """
    chosen = name or os.environ.get(VARIABLE, "")
    return _named(chosen) if chosen else otherwise()


@lru_cache(maxsize=32)
def _named(name: str) -> BaseChatModel:
    try:
        init_chat_model = cast(
            "Callable[..., BaseChatModel]", importlib.import_module("langchain.chat_models").init_chat_model
        )
    except ImportError as error:
        raise ModelUnavailable(
            f"the model {name} needs the package langchain",
            next_step="Install the extra: pip install 'everstep[models]'.",
            model=name,
        ) from error
    try:
        model = init_chat_model(name)
        fields = cast("dict[str, Any]", type(model).model_fields)
        # The runtime retries, with one gate a provider for all agents; a second layer of retries below it would
        # multiply the calls.
        return init_chat_model(name, max_retries=0) if "max_retries" in fields else model
    except ImportError as error:
        raise ModelUnavailable(
            f"the model {name} needs its provider's package: {error}",
            next_step="Install that package beside everstep.",
            model=name,
        ) from error
    except Exception as error:
        raise ModelUnavailable(
            f"the model {name} cannot be made: {error}",
            next_step="Name it provider:model, such as openai:gpt-5, with its credentials in the environment.",
            model=name,
        ) from error
