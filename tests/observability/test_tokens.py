"""Token counts while a job runs, without any tracing."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import HumanMessage
from langchain_core.outputs import Generation, LLMResult
from langgraph.graph import START, StateGraph

from everstep.observability.tokens import TokenCounter, Tokens


async def test_tokens_of_all_ways_to_call_a_model_add_up(scripted_model):
    """Sync, async and streaming calls inside nodes are all counted, each once."""
    counter = TokenCounter()
    model = scripted_model()

    async def work(state: Any) -> Any:
        model.invoke("x")
        await model.ainvoke("x")
        _ = list(model.stream("x"))
        _ = [chunk async for chunk in model.astream("x")]
        await model.abatch(["x", "y"])
        return {}

    graph = StateGraph(dict).add_node("work", work).add_edge(START, "work").compile()
    assert counter.snapshot() == Tokens(0, 0, 0)
    await graph.ainvoke({}, {"callbacks": [counter]})
    assert counter.snapshot() == Tokens(input_tokens=66, output_tokens=24, model_calls=6)


async def test_a_model_that_tells_no_usage_counts_as_a_call():
    """Without usage the tokens stay as they are, and the call is counted."""
    counter = TokenCounter()
    await FakeListChatModel(responses=["a"]).ainvoke("x", {"callbacks": [counter]})
    assert counter.snapshot() == Tokens(0, 0, 1)


def test_older_integrations_tell_usage_beside_the_message():
    """`llm_output["token_usage"]` is read when the message has no usage of its own."""
    counter = TokenCounter()
    told = {"token_usage": {"prompt_tokens": 7, "completion_tokens": 2}}
    counter.on_llm_end(LLMResult(generations=[[Generation(text="a")]], llm_output=told))
    assert counter.snapshot() == Tokens(7, 2, 1)


def test_candidates_of_one_call_are_counted_once(scripted_model):
    """Several candidates repeat the usage of their one call; it is added once."""
    counter = TokenCounter()
    candidate = scripted_model().generate([[HumanMessage("x")]]).generations[0][0]
    counter.on_llm_end(LLMResult(generations=[[candidate, candidate]]))
    assert counter.snapshot() == Tokens(11, 4, 1)


def test_counting_from_many_threads_loses_nothing(scripted_model):
    """Parallel branches in threads count into one counter."""
    counter = TokenCounter()
    model = scripted_model()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: model.invoke("x", {"callbacks": [counter]}), range(200)))
    assert counter.snapshot() == Tokens(2_200, 800, 200)


async def test_a_counter_serves_one_job(scripted_model):
    """Two jobs in one process, each with its counter, do not see each other's tokens."""
    counters = TokenCounter(), TokenCounter()
    model = scripted_model()
    await asyncio.gather(*(model.ainvoke("x", {"callbacks": [counter]}) for counter in (counters[0], *counters)))
    assert [counter.snapshot().model_calls for counter in counters] == [2, 1]
