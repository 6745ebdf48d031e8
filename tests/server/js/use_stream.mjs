// `useStream`, the hook behind LangGraph's chat pages, drawn by React as such a page draws it.

import "./dom.mjs";

import assert from "node:assert/strict";

import { useStream } from "@langchain/langgraph-sdk/react";
import { act, cleanup, renderHook, waitFor } from "@testing-library/react";

import { run, says } from "./scenario.mjs";

const PATIENCE = { timeout: 60_000, interval: 10 };

/** What a page with a chat shows of the hook, each time it is drawn. */
function chat(url, options) {
  return renderHook(() => {
    const stream = useStream({ apiUrl: url, apiKey: null, fetchStateHistory: true, ...options });
    return { stream, shown: stream.messages.map((message) => message.content), question: stream.interrupt };
  }).result;
}

/** Do something and wait until the page is quiet again. */
async function settle(page, doing) {
  await act(async () => {
    await doing(page.current.stream);
  });
  await waitFor(() => assert.equal(page.current.stream.isLoading, false), PATIENCE);
}

const shows = (page, expected) => waitFor(() => assert.deepEqual(page.current.shown, expected), PATIENCE);

const scenarios = {
  async conversation(client, url) {
    let threadId;
    const drawn = [];
    const page = chat(url, { assistantId: "chat", onThreadId: (id) => (threadId = id), onUpdateEvent: (update) => drawn.push(update) });
    await settle(page, (stream) => stream.submit(says("one")));
    await shows(page, ["one", "You said: one "]);
    await settle(page, (stream) => stream.submit(says("two")));
    await shows(page, ["one", "You said: one ", "two", "You said: two "]);
    assert.deepEqual(drawn.map(Object.keys), [["answer"], ["answer"]]);
    assert.equal((await client.threads.get(threadId)).values.messages.length, 4);
    const again = chat(url, { assistantId: "chat", threadId });
    await shows(again, ["one", "You said: one ", "two", "You said: two "]);
  },

  async tokens(client, url) {
    const seen = new Set();
    const page = renderHook(() => {
      const stream = useStream({ apiUrl: url, apiKey: null, assistantId: "chat" });
      for (const message of stream.messages) if (message.type === "ai") seen.add(message.content);
      return { stream, shown: stream.messages.map((message) => message.content) };
    }).result;
    await settle(page, (stream) => stream.submit(says("good day")));
    await shows(page, ["good day", "You said: good day "]);
    assert.ok([...seen].every((text) => "You said: good day ".startsWith(text)), JSON.stringify([...seen]));
  },

  async question(client, url) {
    const page = chat(url, { assistantId: "approval" });
    await settle(page, (stream) => stream.submit(says("mail Anna"), { streamSubgraphs: true, streamResumable: true }));
    await waitFor(() => assert.equal(page.current.question?.value.action_requests[0].name, "send_mail"), PATIENCE);
    const command = { resume: { decisions: [{ type: "approve" }] } };
    await settle(page, (stream) => stream.submit({}, { command }));
    await shows(page, ["mail Anna", "You said: mail Anna ", "decided: approve"]);
    assert.equal(page.current.question, undefined);
  },

  async resolved(client, url) {
    let threadId;
    const page = chat(url, { assistantId: "approval", onThreadId: (id) => (threadId = id) });
    await settle(page, (stream) => stream.submit(says("mail Anna")));
    await waitFor(() => assert.ok(page.current.question), PATIENCE);
    await settle(page, (stream) => stream.submit({}, { command: { goto: "__end__" } }));
    await waitFor(() => assert.equal(page.current.question, undefined), PATIENCE);
    assert.deepEqual((await client.threads.getState(threadId)).next, []);
    assert.equal((await client.threads.get(threadId)).status, "idle");
  },

  async regenerate(client, url) {
    const page = chat(url, { assistantId: "chat" });
    await settle(page, (stream) => stream.submit(says("one")));
    await shows(page, ["one", "You said: one "]);
    const { stream } = page.current;
    const before = stream.getMessagesMetadata(stream.messages[1]).firstSeenState.parent_checkpoint;
    await settle(page, (stream) => stream.submit(undefined, { checkpoint: before, streamMode: ["values"], streamResumable: true }));
    await shows(page, ["one", "You said: one "]);
    await waitFor(() => {
      const { stream } = page.current;
      assert.equal(stream.getMessagesMetadata(stream.messages[1]).branchOptions?.length, 2);
    }, PATIENCE);
  },

  async edited(client, url) {
    const page = chat(url, { assistantId: "chat" });
    await settle(page, (stream) => stream.submit(says("one")));
    await shows(page, ["one", "You said: one "]);
    const { stream } = page.current;
    const checkpoint = stream.getMessagesMetadata(stream.messages[0]).firstSeenState.parent_checkpoint;
    await settle(page, (stream) => stream.submit(says("other"), { checkpoint }));
    await shows(page, ["other", "You said: other "]);
  },

  async stopped(client, url) {
    let created;
    const page = chat(url, { assistantId: "endless", onCreated: (run) => (created = run), onUpdateEvent: () => {} });
    await act(async () => void page.current.stream.submit({ log: ["in"] }));
    await waitFor(() => assert.deepEqual(page.current.stream.values.log, ["in", "a"]), PATIENCE);
    await act(() => page.current.stream.stop());
    await waitFor(async () => {
      assert.equal((await client.runs.get(created.thread_id, created.run_id)).status, "interrupted");
    }, PATIENCE);
    assert.equal(page.current.stream.isLoading, false);
  },

  async failure(client, url) {
    const page = chat(url, { assistantId: "failing", onError: () => {} });
    await settle(page, (stream) => stream.submit({ log: ["in"] }));
    await waitFor(() => assert.match(String(page.current.stream.error?.message), /no such thing/), PATIENCE);
  },

  async rejoined(client, url) {
    const { thread_id: threadId } = await client.threads.create();
    const options = { assistantId: "endless", threadId, reconnectOnMount: true };
    const page = chat(url, { ...options, onUpdateEvent: () => {} });
    await act(async () => void page.current.stream.submit({ log: ["in"] }));
    await waitFor(() => assert.deepEqual(page.current.stream.values.log, ["in", "a"]), PATIENCE);
    const runId = sessionStorage.getItem(`lg:stream:${threadId}`);
    assert.ok(runId);
    cleanup(); // the page is closed, the run goes on
    assert.equal((await client.runs.get(threadId, runId)).status, "running");
    const again = chat(url, options);
    await waitFor(() => assert.deepEqual(again.current.stream.values.log, ["in", "a"]), PATIENCE);
    assert.equal(again.current.stream.isLoading, true);
    await client.runs.cancel(threadId, runId);
    await waitFor(() => assert.equal(again.current.stream.isLoading, false), PATIENCE);
    assert.equal(sessionStorage.getItem(`lg:stream:${threadId}`), null);
  },
};

for (const name of Object.keys(scenarios)) {
  const scenario = scenarios[name];
  scenarios[name] = async (...given) => {
    try {
      await scenario(...given);
    } finally {
      cleanup(); // the page is closed
    }
  };
}

await run(scenarios, { atOnce: false });
