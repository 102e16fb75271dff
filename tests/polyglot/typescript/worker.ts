// A worker in TypeScript: the generated stubs and Connect, and nothing else. `node worker.ts HOST:PORT NAME`
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { type Client, Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import type { LeasedTask } from "./stubs/taskstore/v1/leases_pb.js";
import { LeaseService } from "./stubs/taskstore/v1/leases_pb.js";

const LEASE_MS = 5_000;
const BEAT_MS = 1_500;
const [store, name] = process.argv.slice(2);
const workerId = `${name}-${randomUUID()}`; // new at each start
const leases: Client<typeof LeaseService> = createClient(LeaseService, createGrpcTransport({ baseUrl: `http://${store}` }));

const parse = (data: Uint8Array) => JSON.parse(new TextDecoder().decode(data));
const json = (value: unknown) => ({ mediaType: "application/json", data: new TextEncoder().encode(JSON.stringify(value)) });

async function run(task: LeasedTask, lost: AbortSignal): Promise<void> {
  const lease = task.lease;
  if (task.cancelRequested) {
    await leases.confirmCancel({ lease });
    return;
  }
  const input = parse(task.input!.data) as { words: string[]; pause_ms: number };
  // What is done is not done again.
  const done = task.checkpoints ? (await leases.loadCheckpoints({ lease })).checkpoints.map((one) => parse(one.payload!.data)) : [];
  for (let revision = done.length; revision < input.words.length; revision++) {
    await sleep(input.pause_ms, undefined, { signal: lost }); // the work
    const word = `${input.words[revision].toUpperCase()} by ${name}`;
    await leases.appendCheckpoint({ lease, revision, step: `shout ${revision}`, payload: json(word) }, { signal: lost });
    done.push(word);
  }
  await leases.completeTask({ lease, result: json({ content: [{ type: "text", text: done.join(", ") }] }) }, { signal: lost });
}

async function withHeartbeats(task: LeasedTask): Promise<void> {
  const lost = new AbortController();
  const beat = () =>
    leases.heartbeatTask({ lease: task.lease, leaseMs: BigInt(LEASE_MS) }, { timeoutMs: BEAT_MS }).catch((error) => lost.abort(error));
  const timer = setInterval(beat, BEAT_MS);
  try {
    await run(task, lost.signal);
  } finally {
    clearInterval(timer);
  }
}

for (;;) {
  try {
    const request = {
      requestId: randomUUID(), workerId, workflows: [{ workflow: "shout", version: 1 }], limit: 1, leaseMs: BigInt(LEASE_MS), waitMs: 20_000n,
    };
    for (const task of (await leases.leaseTasks(request, { timeoutMs: 30_000 })).tasks) await withHeartbeats(task);
  } catch (error) {
    // LEASE_LOST, or a store that is away. In both cases the task is no longer this worker's business.
    console.error(Code[ConnectError.from(error).code], ConnectError.from(error).rawMessage);
    await sleep(100);
  }
}
