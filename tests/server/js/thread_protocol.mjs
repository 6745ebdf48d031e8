// The SDK's thread streams: the thread protocol from JavaScript.

import assert from "node:assert/strict";
import { all, run, says } from "./scenario.mjs";

const words = (text) => text.trim().split(" ");

await run({
  "messages, a question and its answer": async (client) => {
    const thread = client.threads.stream({ assistantId: "approval" });
    const told = all(thread.messages); // asked for before the run begins, which may be over at once
    await thread.run.start({ input: says("hello there") });
    const messages = await told;
    assert.deepEqual(await Promise.all(messages.map(async (message) => words(await message.text))), [
      ["You", "said:", "hello", "there"],
    ]);
    assert.equal(thread.interrupted, true);
    const [asked] = thread.interrupts;
    assert.equal(asked.payload.action_requests[0].name, "send_mail");
    const response = { decisions: [{ type: "approve" }] };
    const ends = thread.subscribe("lifecycle");
    await thread.input.respond({ interrupt_id: asked.interruptId, namespace: asked.namespace, response });
    for await (const event of await ends) {
      if (event.params.data.event === "completed") break;
    }
    const state = await client.threads.getState(thread.threadId);
    assert.equal(state.values.messages.at(-1).content, "decided: approve");
    await thread.close();
  },

  "values and the output": async (client) => {
    const thread = client.threads.stream({ assistantId: "steps" });
    await thread.run.start({ input: { log: ["in"] } });
    const values = await all(thread.values);
    assert.deepEqual(values.at(-1).log, ["in", "a", "b", "c"]);
    assert.deepEqual((await thread.output).log, ["in", "a", "b", "c"]);
    await thread.close();
  },
});
