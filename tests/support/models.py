"""Chat models that say what a test tells them to have used."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult


class MeteredModel(BaseChatModel):
    """Answers `yes`, and says that it used a given number of tokens.

    Attributes:
        tokens: Input and output tokens of each call; None says nothing.
        told: What the provider tells beside the answer, such as its cost.
        name_told: The model's name.
    """

    tokens: tuple[int, int] | None = (80, 20)
    told: dict[str, Any] = {}
    name_told: str = "metered-1"

    @property
    def _llm_type(self) -> str:
        return "metered"

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return LangSmithParams(ls_provider="tests", ls_model_name=self.name_told, ls_model_type="chat")

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        message = AIMessage("yes", response_metadata=self.told)
        if self.tokens is not None:
            received, produced = self.tokens
            message.usage_metadata = {
                "input_tokens": received,
                "output_tokens": produced,
                "total_tokens": received + produced,
            }
        return ChatResult(generations=[ChatGeneration(message=message)])
