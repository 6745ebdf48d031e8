"""Which chat model a node talks to."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from langchain_core.language_models import FakeListChatModel

from everstep.errors import ModelUnavailable
from everstep.nodes.model import VARIABLE, choose_model

FALLBACK = FakeListChatModel(responses=["fallback"])


def test_without_a_name_the_graphs_own_model_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the job nor the environment names a model: the graph brings its own."""
    monkeypatch.delenv(VARIABLE, raising=False)
    assert choose_model(None, lambda: FALLBACK) is FALLBACK
    assert choose_model("", lambda: FALLBACK) is FALLBACK


def test_the_job_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's model is asked for when the job names none; the job's name wins."""
    monkeypatch.setenv(VARIABLE, "environment:model")
    with pytest.raises(ModelUnavailable, match="environment:model"):
        choose_model(None, lambda: FALLBACK)
    with pytest.raises(ModelUnavailable, match="job:model"):
        choose_model("job:model", lambda: FALLBACK)


def test_a_missing_langchain_is_told_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import of langchain that fails is an error that names the extra, whatever is installed here."""
    monkeypatch.setitem(sys.modules, "langchain.chat_models", None)
    with pytest.raises(ModelUnavailable) as caught:
        choose_model("missing:langchain", lambda: FALLBACK)
    assert "everstep[models]" in caught.value.next_step
    assert caught.value.as_dict()["model"] == "missing:langchain"


def test_an_unknown_provider_is_told() -> None:
    """A provider langchain does not know, or whose package is missing, is an error that names the model."""
    with pytest.raises(ModelUnavailable) as caught:
        choose_model("nobody:nothing", lambda: FALLBACK)
    assert caught.value.ids["model"] == "nobody:nothing"


def test_a_models_own_retries_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime retries; where a model has retries of its own they are set to none."""

    class Retrying(FakeListChatModel):
        max_retries: int = 6

    def init_chat_model(name: str, **settings: int) -> Retrying:
        return Retrying(responses=[name], **settings)

    module = ModuleType("langchain.chat_models")
    module.__dict__.update(vars(SimpleNamespace(init_chat_model=init_chat_model)))
    monkeypatch.setitem(sys.modules, "langchain", ModuleType("langchain"))
    monkeypatch.setitem(sys.modules, "langchain.chat_models", module)
    model = choose_model("retrying:model", lambda: FALLBACK)
    assert isinstance(model, Retrying)
    assert model.max_retries == 0
