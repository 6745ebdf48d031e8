// `RemoteGraph` of LangGraph for JavaScript: a graph of the server as if it were here.

import assert from "node:assert/strict";

import { Annotation, Command, END, isGraphInterrupt, MemorySaver, START, StateGraph } from "@langchain/langgraph";
import { RemoteGraph } from "@langchain/langgraph/remote";

import { all, run, says } from "./scenario.mjs";

const INPUT = { log: ["in"] };
const onThread = () => ({ configurable: { thread_id: crypto.randomUUID() } });

await run({
  async runs(_, url) {
    const steps = new RemoteGraph({ graphId: "steps", url });
    assert.deepEqual(await steps.invoke(INPUT), { log: ["in", "a", "b", "c"] });
    const updates = await all(await steps.stream(INPUT, { streamMode: "updates" }));
    assert.deepEqual(updates.map((update) => Object.keys(update)[0]), ["a", "b", "c"]);
    const both = await all(await steps.stream(INPUT, { streamMode: ["custom", "values"] }));
    assert.deepEqual([...new Set(both.map(([mode]) => mode))], ["values", "custom"]);
    const chat = new RemoteGraph({ graphId: "chat", url });
    const parts = await all(await chat.stream(says("good day"), { streamMode: "messages" }));
    assert.equal(parts.map(([message]) => message.content).join(""), "You said: good day ");
    const failing = new RemoteGraph({ graphId: "failing", url });
    await assert.rejects(failing.invoke(INPUT), /no such thing/);
  },

  async question(_, url) {
    const nested = new RemoteGraph({ graphId: "nested", url });
    const config = onThread();
    await assert.rejects(nested.invoke(INPUT, config), isGraphInterrupt);
    const state = await nested.getState(config, { subgraphs: true });
    assert.deepEqual(state.next, ["inner"]);
    assert.deepEqual(state.tasks[0].interrupts.map((interrupt) => interrupt.value), [{ question: "go on?" }]);
    assert.deepEqual(state.tasks[0].state.values, { log: ["first"] });
    const done = await nested.invoke(new Command({ resume: "yes" }), config);
    assert.deepEqual(done.log, ["in", "before", "first", "asked", "answered yes"]);
  },

  async state(_, url) {
    const steps = new RemoteGraph({ graphId: "steps", url });
    const config = onThread();
    await steps.invoke(INPUT, config);
    const history = await all(steps.getStateHistory(config));
    assert.deepEqual(history.map((state) => state.next), [[], ["c"], ["b"], ["a"], ["__start__"]]);
    await steps.updateState(history[2].config, { log: ["other"] });
    assert.deepEqual((await steps.getState(config)).values.log, ["in", "a", "other"]);
    assert.deepEqual((await steps.invoke(null, config)).log, ["in", "a", "other", "b", "c"]);
    const drawn = await new RemoteGraph({ graphId: "nested", url }).getGraphAsync({ xray: true });
    assert.ok("inner:ask" in drawn.nodes);
  },

  async node(_, url) {
    const State = Annotation.Root({ log: Annotation({ reducer: (before, after) => after, default: () => [] }) });
    const parent = new StateGraph(State)
      .addNode("remote", new RemoteGraph({ graphId: "steps", url }))
      .addEdge(START, "remote")
      .addEdge("remote", END)
      .compile({ checkpointer: new MemorySaver() });
    const config = onThread();
    const parts = await all(await parent.stream(INPUT, { ...config, streamMode: "updates", subgraphs: true }));
    const within = parts.filter(([namespace]) => namespace.length > 0).map(([, update]) => Object.keys(update)[0]);
    assert.deepEqual(within, ["a", "b", "c"]);
    assert.deepEqual((await parent.getState(config)).values.log, ["in", "a", "b", "c"]);
  },
});
