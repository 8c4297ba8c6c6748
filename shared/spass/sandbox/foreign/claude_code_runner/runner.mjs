// Run a query of the Claude Agent SDK: one JSON request on stdin, one marked JSON answer on stdout.
// The last line of stderr is the message of an error.

import { mkdir, readFile, writeFile } from "node:fs/promises";
import { homedir } from "node:os";
import { join } from "node:path";

const OUTPUT_START = "---SPASS_OUTPUT_START---";
const OUTPUT_END = "---SPASS_OUTPUT_END---";
const MAX_RESULTS = 200;
const MAX_RESULT_CHARACTERS = 4000;

async function readRequest() {
  let text = "";
  process.stdin.setEncoding("utf8");
  for await (const chunk of process.stdin) text += chunk;
  return JSON.parse(text);
}

function queryOptions(request) {
  const options = {
    cwd: request.workspace,
    settingSources: [], // nothing that lies in the workspace or in a home folder configures the agent
    strictMcpConfig: true,
    permissionMode: "default",
    canUseTool: async (_name, input) => ({ behavior: "allow", updatedInput: input }),
    disallowedTools: ["AskUserQuestion"], // nobody could answer
    systemPrompt: { type: "preset", preset: "claude_code", append: request.system_prompt || undefined },
    env: {
      ...process.env,
      ANTHROPIC_API_KEY: request.api_key,
      ...(request.base_url ? { ANTHROPIC_BASE_URL: request.base_url } : {}),
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
    },
    stderr: (text) => process.stderr.write(text),
  };
  if (request.allowed_tools !== null && request.allowed_tools !== undefined) options.tools = request.allowed_tools;
  if (request.session_id) options.resume = request.session_id;
  return options;
}

function shorten(value) {
  const text = typeof value === "string" ? value : value.map((part) => part?.text ?? "").join("");
  return text.length <= MAX_RESULT_CHARACTERS ? text : `${text.slice(0, MAX_RESULT_CHARACTERS - 1)}…`;
}

// Return the names of the models, those that wrote most first: the SDK uses a small one for titles and summaries.
function modelsByWork(usage) {
  const written = (name) => usage[name]?.outputTokens ?? 0;
  return Object.keys(usage).sort((one, other) => written(other) - written(one));
}

class Collector {
  constructor() {
    this.calls = new Map();
    this.toolResults = [];
    this.text = "";
    this.result = null;
    this.sessionId = "";
  }

  add(message) {
    if (message.session_id) this.sessionId = message.session_id;
    if (message.type === "result") this.result = message;
    if (message.parent_tool_use_id) return; // the work of a subagent
    const content = message.message?.content;
    if (!Array.isArray(content)) return;
    if (message.type === "assistant") {
      const text = content.filter((block) => block.type === "text").map((block) => block.text);
      if (text.length > 0) this.text = text.join("");
      for (const block of content) if (block.type === "tool_use") this.calls.set(block.id, block);
    } else if (message.type === "user") {
      for (const block of content) if (block.type === "tool_result") this.addResult(block);
    }
  }

  addResult(block) {
    const call = this.calls.get(block.tool_use_id);
    if (call === undefined) return;
    const success = block.is_error !== true;
    const args = shorten(JSON.stringify(call.input ?? {}));
    this.toolResults.push({ tool_name: call.name, arguments: args, content: shorten(block.content ?? ""), success });
  }

  answer() {
    const result = this.result;
    if (result === null) throw new Error("The Claude Agent SDK ended without a result.");
    if (result.subtype !== "success" || result.is_error) {
      const kind = result.subtype === "success" ? "" : result.subtype;
      throw new Error([kind, ...(result.errors ?? []), result.result ?? ""].filter(Boolean).join(": "));
    }
    const usage = {
      prompt_tokens:
        (result.usage?.input_tokens ?? 0) +
        (result.usage?.cache_creation_input_tokens ?? 0) +
        (result.usage?.cache_read_input_tokens ?? 0),
      completion_tokens: result.usage?.output_tokens ?? 0,
    };
    const metadata = {
      session_id: this.sessionId,
      num_turns: result.num_turns ?? 0,
      usage,
      total_cost_usd: result.total_cost_usd ?? 0,
      models: modelsByWork(result.modelUsage ?? {}),
    };
    return { content: result.result ?? this.text, tool_results: this.toolResults.slice(-MAX_RESULTS), metadata };
  }
}

// Return the cost of this run. The SDK reports that of the whole session, so the last sum is kept beside the session.
async function costOfRun(sessionId, total) {
  const folder = join(homedir(), "session-costs");
  const file = join(folder, sessionId.replace(/[^0-9a-zA-Z-]/g, "_"));
  const before = Number(await readFile(file, "utf8").catch(() => "0"));
  await mkdir(folder, { recursive: true });
  await writeFile(file, String(total));
  return Math.max(0, total - before);
}

async function main() {
  const request = await readRequest();
  const { query } = await import("@anthropic-ai/claude-agent-sdk");
  const collector = new Collector();
  for await (const message of query({ prompt: request.prompt, options: queryOptions(request) })) collector.add(message);
  const answer = collector.answer();
  const { total_cost_usd: total, ...metadata } = answer.metadata;
  return { ...answer, metadata: { ...metadata, cost_usd: await costOfRun(metadata.session_id, total) } };
}

const write = process.stdout.write.bind(process.stdout);
process.stdout.write = process.stderr.write.bind(process.stderr); // only the answer goes to stdout
try {
  const answer = JSON.stringify(await main(), (_key, value) => (typeof value === "string" ? value.toWellFormed() : value));
  write(`\n${OUTPUT_START}\n${answer}\n${OUTPUT_END}\n`, () => process.exit(0));
} catch (error) {
  process.stderr.write(`\n${String(error?.message ?? error).replace(/\s+/g, " ")}\n`, () => process.exit(1));
}
