// Runs a file's scenarios: node FILE URL, or one of them: node FILE URL NAME. Tells of each; exit code 1 if one failed.

import { Client } from "@langchain/langgraph-sdk";

/**
 * Run the scenarios, at the same time or one after the other.
 * @param {Record<string, (client: Client, url: string) => Promise<void>>} scenarios what there is, by name
 */
export async function run(scenarios, { atOnce = true } = {}) {
  const [url, only] = process.argv.slice(2);
  const client = new Client({ apiUrl: url, apiKey: null });
  let failed = false;
  const one = async (name) => {
    try {
      await scenarios[name](client, url);
      console.log(`${name}: as expected`);
    } catch (error) {
      failed = true;
      console.error(`${name}:`, error);
    }
  };
  const names = Object.keys(scenarios).filter((name) => only === undefined || name === only);
  if (atOnce) await Promise.all(names.map(one));
  else for (const name of names) await one(name);
  process.exit(failed || names.length === 0 ? 1 : 0); // whatever a client still holds open
}

/** All that an asynchronous iterator gives. */
export async function all(parts) {
  const found = [];
  for await (const part of parts) found.push(part);
  return found;
}

/** The parts of a stream with this event's name, what they tell. */
export const told = (parts, event) => parts.filter((part) => part.event === event).map((part) => part.data);

/** A message of a person, as the clients send it. */
export const says = (content) => ({ messages: [{ type: "human", content }] });
