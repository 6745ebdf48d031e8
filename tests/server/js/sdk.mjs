// The JavaScript SDK's client, call by call.

import assert from "node:assert/strict";

import { all, run, says, told } from "./scenario.mjs";

const INPUT = { log: ["in"] };
const WHOLE = ["in", "before", "first", "asked", "answered yes"];

const isNotFound = (error) => error.status === 404;
const isConflict = (error) => error.status === 409;

await run({
  async assistants(client) {
    const [found] = await client.assistants.search({ graphId: "chat" });
    assert.equal(found.graph_id, "chat");
    assert.equal(found.metadata.created_by, "system");
    assert.deepEqual(await client.assistants.get(found.assistant_id), found);
    const graph = await client.assistants.getGraph("nested", { xray: true });
    assert.ok(graph.nodes.some((node) => node.id === "inner:ask"));
    const schemas = await client.assistants.getSchemas("chat");
    assert.ok("messages" in schemas.state_schema.properties);
    assert.deepEqual(await client.assistants.getSubgraphs("chat"), {});

    const made = await client.assistants.create({ graphId: "chat", name: "mine", metadata: { of: "javascript" } });
    assert.equal(made.version, 1);
    const changed = await client.assistants.update(made.assistant_id, { name: "still mine" });
    assert.equal(changed.version, 2);
    const versions = await client.assistants.getVersions(made.assistant_id);
    assert.deepEqual(versions.map((version) => version.name), ["still mine", "mine"]);
    assert.equal((await client.assistants.setLatest(made.assistant_id, 1)).name, "mine");
    assert.equal(await client.assistants.count({ metadata: { of: "javascript" } }), 1);
    await client.assistants.delete(made.assistant_id);
    await assert.rejects(client.assistants.get(made.assistant_id), isNotFound);
  },

  async threads(client) {
    const threadId = crypto.randomUUID();
    const made = await client.threads.create({ threadId, metadata: { of: "threads" } });
    assert.equal(made.thread_id, threadId);
    assert.equal(made.status, "idle");
    await assert.rejects(client.threads.create({ threadId }), isConflict);
    assert.equal((await client.threads.create({ threadId, ifExists: "do_nothing" })).thread_id, threadId);
    await client.threads.update(threadId, { metadata: { seen: true } });
    assert.deepEqual((await client.threads.get(threadId)).metadata, { of: "threads", seen: true });
    const found = await client.threads.search({ metadata: { of: "threads" } });
    assert.deepEqual(found.map((thread) => thread.thread_id), [threadId]);
    assert.equal(await client.threads.count({ metadata: { of: "threads" } }), 1);
    await client.threads.delete(threadId);
    await assert.rejects(client.threads.get(threadId), isNotFound);
  },

  async state(client) {
    const { thread_id: threadId } = await client.threads.create({ graphId: "steps" });
    const nothing = await client.threads.getState(threadId);
    assert.equal(nothing.checkpoint, null);
    assert.deepEqual(await client.threads.getHistory(threadId), []);
    await client.runs.wait(threadId, "steps", { input: INPUT });
    assert.deepEqual((await client.threads.getState(threadId)).values, { log: ["in", "a", "b", "c"] });
    const history = await client.threads.getHistory(threadId, { limit: 3 });
    assert.deepEqual(history.map((state) => state.next), [[], ["c"], ["b"]]);
    await client.threads.updateState(threadId, { values: { log: ["more"] }, asNode: "c" });
    const copy = await client.threads.copy(threadId);
    assert.notEqual(copy.thread_id, threadId);
    assert.deepEqual((await client.threads.getState(copy.thread_id)).values.log.at(-1), "more");
    await client.threads.patchState(threadId, { noted: "yes" });
    assert.equal((await client.threads.get(threadId)).metadata.noted, "yes");
  },

  async stream(client) {
    const { thread_id: threadId } = await client.threads.create();
    let created;
    const parts = await all(
      client.runs.stream(threadId, "chat", {
        input: says("good day"),
        streamMode: ["values", "updates", "messages-tuple", "messages", "debug", "tasks", "checkpoints", "events"],
        onRunCreated: (run) => (created = run),
      }),
    );
    assert.equal(created.thread_id, threadId);
    assert.equal(told(parts, "metadata")[0].run_id, created.run_id);
    const tokens = told(parts, "messages").map(([message]) => message.content);
    assert.equal(tokens.join(""), "You said: good day ");
    assert.equal(told(parts, "messages/partial").at(-1)[0].content, "You said: good day ");
    assert.equal(told(parts, "values").at(-1).messages.length, 2);
    assert.deepEqual(told(parts, "updates").map(Object.keys), [["answer"]]);
    assert.ok(told(parts, "events").some((event) => event.event === "on_chat_model_stream"));
    for (const mode of ["debug", "tasks", "checkpoints"]) assert.ok(told(parts, mode).length > 1, mode);
    const states = await client.threads.getHistory(threadId);
    assert.ok(told(parts, "checkpoints").some((one) => one.checkpoint.checkpoint_id === states[0].checkpoint.checkpoint_id));
  },

  async subgraphs(client) {
    const options = { input: INPUT, streamMode: "updates", streamSubgraphs: true };
    const parts = await all(client.runs.stream(null, "nested", options));
    assert.ok(parts.some((part) => part.event.startsWith("updates|inner:") && part.data.first));
  },

  async failure(client) {
    const { thread_id: threadId } = await client.threads.create();
    const parts = await all(client.runs.stream(threadId, "failing", { input: INPUT }));
    assert.deepEqual(told(parts, "error"), [{ error: "ValueError", message: "no such thing" }]);
    await assert.rejects(client.runs.wait(threadId, "failing", { input: INPUT }), /ValueError: no such thing/);
    const answered = await client.runs.wait(threadId, "failing", { input: INPUT, raiseError: false });
    assert.equal(answered.__error__.error, "ValueError");
    assert.equal((await client.threads.get(threadId)).status, "error");
  },

  async background(client) {
    const { thread_id: threadId } = await client.threads.create();
    const run = await client.runs.create(threadId, "steps", { input: INPUT, streamMode: ["updates"], metadata: { n: 1 } });
    assert.deepEqual(await client.runs.join(threadId, run.run_id), { log: ["in", "a", "b", "c"] });
    const done = await client.runs.get(threadId, run.run_id);
    assert.deepEqual([done.status, done.metadata.n], ["success", 1]);
    const parts = await all(client.runs.joinStream(threadId, run.run_id, { lastEventId: "-1" }));
    assert.deepEqual(told(parts, "updates").map((update) => Object.keys(update)[0]), ["a", "b", "c"]);
    const rest = await all(client.runs.joinStream(threadId, run.run_id, { lastEventId: parts[2].id }));
    assert.deepEqual(rest, parts.slice(3));
    assert.deepEqual((await client.runs.list(threadId)).map((one) => one.run_id), [run.run_id]);
    assert.deepEqual(await client.runs.list(threadId, { status: "pending" }), []);
    await client.runs.delete(threadId, run.run_id);
    await assert.rejects(client.runs.get(threadId, run.run_id), isNotFound);
  },

  async stateless(client) {
    assert.deepEqual(await client.runs.wait(null, "steps", { input: INPUT }), { log: ["in", "a", "b", "c"] });
    const runs = await client.runs.createBatch([
      { assistantId: "steps", input: INPUT, onCompletion: "keep" },
      { assistantId: "steps", input: INPUT, onCompletion: "keep" },
    ]);
    for (const run of runs) assert.equal((await client.runs.join(run.thread_id, run.run_id)).log.length, 4);
  },

  async cancel(client) {
    const { thread_id: threadId } = await client.threads.create();
    const stream = client.runs.stream(threadId, "endless", { input: INPUT, streamMode: "updates" });
    let runId;
    for await (const part of stream) {
      if (part.event === "metadata") runId = part.data.run_id;
      if (part.event === "updates") await client.runs.cancel(threadId, runId, true);
    }
    assert.equal((await client.runs.get(threadId, runId)).status, "interrupted");
    assert.deepEqual((await client.threads.getState(threadId)).values.log, ["in", "a"]);

    const other = await client.runs.create(threadId, "endless", { input: INPUT });
    await client.runs.cancelMany({ threadId, runIds: [other.run_id] });
    await client.runs.join(threadId, other.run_id);
    assert.equal((await client.runs.get(threadId, other.run_id)).status, "interrupted");
  },

  async multitask(client) {
    const { thread_id: threadId } = await client.threads.create();
    const first = await client.runs.create(threadId, "endless", { input: INPUT });
    const rejected = client.runs.create(threadId, "steps", { input: INPUT, multitaskStrategy: "reject" });
    await assert.rejects(rejected, isConflict);
    const queued = await client.runs.create(threadId, "steps", { input: { log: ["queued"] } });
    assert.equal(queued.status, "pending");
    await client.runs.cancel(threadId, first.run_id);
    assert.deepEqual((await client.runs.join(threadId, queued.run_id)).log.slice(-4), ["queued", "a", "b", "c"]);
    const second = await client.runs.create(threadId, "endless", { input: INPUT });
    const after = await client.runs.wait(threadId, "steps", { input: { log: ["now"] }, multitaskStrategy: "interrupt" });
    assert.deepEqual(after.log.slice(-4), ["now", "a", "b", "c"]);
    assert.equal((await client.runs.get(threadId, second.run_id)).status, "interrupted");
  },

  async interrupt(client) {
    const { thread_id: threadId } = await client.threads.create();
    const asked = await client.runs.wait(threadId, "nested", { input: INPUT });
    const thread = await client.threads.get(threadId);
    assert.equal(thread.status, "interrupted");
    const [question] = Object.values(thread.interrupts).flat();
    assert.deepEqual(asked.__interrupt__, [question]);
    assert.deepEqual(question.value, { question: "go on?" });
    const { tasks } = await client.threads.getState(threadId, undefined, { subgraphs: true });
    assert.deepEqual(tasks[0].interrupts, [question]);
    assert.deepEqual(tasks[0].state.values, { log: ["first"] });
    const resume = { [question.id]: "yes" };
    const done = await client.runs.wait(threadId, "nested", { command: { resume }, strictResume: true });
    assert.deepEqual(done.log, WHOLE);
    await assert.rejects(client.runs.wait(threadId, "nested", { command: { resume } }), isConflict);
  },

  async breakpoint(client) {
    const { thread_id: threadId } = await client.threads.create();
    const parts = await all(client.runs.stream(threadId, "steps", { input: INPUT, interruptAfter: ["a"] }));
    assert.deepEqual(told(parts, "values").at(-1).log, ["in", "a"]);
    assert.deepEqual((await client.threads.getState(threadId)).next, ["b"]);
    assert.deepEqual((await client.runs.wait(threadId, "steps", { input: null })).log, ["in", "a", "b", "c"]);
  },

  async fork(client) {
    const { thread_id: threadId } = await client.threads.create();
    await client.runs.wait(threadId, "chat", { input: says("one") });
    const history = await client.threads.getHistory(threadId);
    const { thread_id: _, ...checkpoint } = history.find((state) => state.next[0] === "answer").checkpoint;
    const again = await client.runs.wait(threadId, "chat", { checkpoint });
    assert.deepEqual(again.messages.map((message) => message.type), ["human", "ai"]);
    const ends = (await client.threads.getHistory(threadId)).filter((state) => state.next.length === 0);
    assert.equal(ends.length, 2);
    assert.equal(again.messages[0].id, ends[1].values.messages[0].id);
  },

  async store(client) {
    const namespace = ["javascript", crypto.randomUUID()];
    await client.store.putItem(namespace, "one", { colour: "red" });
    await client.store.putItem(namespace, "two", { colour: "blue" });
    assert.deepEqual((await client.store.getItem(namespace, "one")).value, { colour: "red" });
    const { items } = await client.store.searchItems(namespace, { filter: { colour: "blue" } });
    assert.deepEqual(items.map((item) => item.key), ["two"]);
    assert.ok(items[0].createdAt && items[0].updatedAt);
    const { namespaces } = await client.store.listNamespaces({ prefix: ["javascript"] });
    assert.ok(namespaces.some((found) => found.join() === namespace.join()));
    await client.store.deleteItem(namespace, "one");
    assert.equal(await client.store.getItem(namespace, "one"), null);
  },

  async crons(client) {
    const made = await client.crons.create("steps", { schedule: "0 3 * * *", input: INPUT, metadata: { of: "javascript" } });
    assert.ok(made.cron_id);
    const [found] = await client.crons.search({ assistantId: made.assistant_id });
    assert.equal(found.schedule, "0 3 * * *");
    assert.ok(Date.parse(found.next_run_date) > Date.now());
    await client.crons.update(made.cron_id, { schedule: "0 4 * * *", enabled: false });
    assert.deepEqual((await client.crons.search({ enabled: false })).map((cron) => cron.schedule), ["0 4 * * *"]);
    await client.crons.delete(made.cron_id);
    assert.equal(await client.crons.count(), 0);
  },
});
