// The official Node client, with and without ext-tasks, against a bridge: `node node_client.mjs URL ROUTES FILE`.
// Writes one JSON object to FILE: under each scenario's name what it saw, or its `error`.
import { readFileSync, writeFileSync } from "node:fs";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { createTaskSessionFromClient, resultFromTaskOutcome } from "@modelcontextprotocol/ext-tasks/client";

const VERSION = "2026-07-28";
const [url, routes, file] = process.argv.slice(2);
const clientInfo = { name: "node", version: "1" };
const elicitation = { form: {} };
const answers = { action: "accept", content: { name: "Ann", confirm: true } };

/** What ext-tasks 0.2.2 asks of its host: a way for the messages that the client's own codecs do not know. */
function rawDispatch(transport) {
  const waiting = new Map();
  const others = transport.onmessage;
  transport.onmessage = (message, extra) => {
    const settle = waiting.get(message.id);
    if (settle === undefined) return others(message, extra);
    waiting.delete(message.id);
    settle(message.error ? { kind: "error", error: message.error } : { kind: "result", result: message.result });
  };
  let last = 0;
  return (request, options) =>
    new Promise((resolve, reject) => {
      const id = `raw-${++last}`;
      waiting.set(id, resolve);
      transport.send({ jsonrpc: "2.0", id, ...request }, { requestSignal: options?.signal }).catch(reject);
    });
}

async function connected(capabilities, work, mode = "auto") {
  const client = new Client(clientInfo, { capabilities, versionNegotiation: { mode } });
  const transport = new StreamableHTTPClientTransport(new URL(url));
  await client.connect(transport);
  try {
    return { era: client.getProtocolEra(), ...(await work(client, transport)) };
  } finally {
    await client.close();
  }
}

const session = (work, onInputRequest) =>
  connected({ elicitation }, async (client, transport) => {
    const tasks = createTaskSessionFromClient(client, {
      endpointId: "tenure",
      rawDispatch: rawDispatch(transport),
      v2RequestFraming: { protocolVersion: VERSION, clientInfo, clientCapabilities: { elicitation } },
      onInputRequest,
    });
    try {
      return await work(tasks);
    } finally {
      await tasks.close();
    }
  });

/** Calls a tool, answers what is asked, and tells how it went. */
function questioned(tool) {
  const asked = [];
  const answer = async (request, { inputId, delivery }) => {
    asked.push([inputId, delivery]);
    return answers;
  };
  return session(async (tasks) => {
    const execution = await tasks.callTool(tool, {});
    const { outcome } = await execution.settle();
    return { kind: execution.kind, asked, text: resultFromTaskOutcome(outcome).content[0].text };
  }, answer);
}

const scenarios = {
  plain: () =>
    connected({}, async (client) => {
      const { tools } = await client.listTools();
      const result = await client.callTool({ name: "greet", arguments: { name: "Ann" } });
      return { tools: tools.map((tool) => tool.name), text: result.content[0].text };
    }),

  earlier: () =>
    connected(
      {},
      async (client) => {
        const told = [];
        const call = { name: "test_tool_with_progress", arguments: {} };
        const result = await client.callTool(call, { onprogress: ({ progress }) => told.push(progress) });
        return { told, text: result.content[0].text };
      },
      "legacy",
    ),

  changes: () =>
    connected({}, async (client) => {
      const describe = async () => (await client.listTools()).tools.find((tool) => tool.name === "multi_input").description;
      let next;
      client.setNotificationHandler("notifications/tools/list_changed", () => next());
      const subscription = await client.listen({ toolsListChanged: true });
      const before = readFileSync(routes, "utf8");
      const told = [await describe()];
      for (const text of [before.replace(told[0], "Asks twice."), before]) {
        const changed = new Promise((resolve) => (next = resolve));
        writeFileSync(routes, text);
        await changed;
        told.push(await describe());
      }
      await subscription.close();
      return { honored: subscription.honoredFilter, told };
    }),

  rounds: () =>
    connected({ elicitation }, async (client) => {
      client.setRequestHandler("elicitation/create", async () => answers);
      const result = await client.callTool({ name: "test_input_required_result_elicitation", arguments: {} });
      return { text: result.content[0].text };
    }),

  poll: () =>
    session(async (tasks) => {
      const statuses = [];
      const execution = await tasks.callTool("slow_compute", { seconds: 1, label: "node" });
      const onEvent = (event) => void (event.type === "task" && statuses.push(event.task.status));
      const { outcome } = await execution.settle({ onEvent });
      return { kind: execution.kind, statuses, text: resultFromTaskOutcome(outcome).content[0].text };
    }),

  input: () => questioned("multi_input"),

  before: () => questioned("test_tool_with_task"),

  cancel: () =>
    session(async (tasks) => {
      const execution = await tasks.callTool("slow_compute", { seconds: 60, label: "node" });
      await execution.cancel();
      const { outcome } = await execution.settle();
      return { kind: execution.kind, status: outcome.status };
    }),

  resume: async () => {
    let kept;
    await session(async (tasks) => {
      const execution = await tasks.callTool("slow_compute", { seconds: 1, label: "later" });
      await execution.handoff((reference) => void (kept = JSON.stringify(reference)));
    });
    return session(async (tasks) => {
      const { outcome } = await (await tasks.resumeTask(JSON.parse(kept))).settle();
      return { text: resultFromTaskOutcome(outcome).content[0].text };
    });
  },

  failure: () =>
    session(async (tasks) => {
      const { outcome } = await (await tasks.callTool("protocol_error_job", {})).settle();
      return { status: outcome.status, code: outcome.error.code };
    }),
};

const told = Object.entries(scenarios).map(async ([name, run]) => {
  try {
    return [name, await run()];
  } catch (error) {
    return [name, { error: error.stack ?? String(error) }];
  }
});
writeFileSync(file, JSON.stringify(Object.fromEntries(await Promise.all(told))));
