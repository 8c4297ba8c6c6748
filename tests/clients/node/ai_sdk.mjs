// Call the gateway through Vercel's AI SDK and its OpenAI-compatible provider: text, stream, tools, objects and 600 embeddings.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const { CHAT_MODEL, EMBEDDING_MODEL, OPENAI_API_KEY: apiKey, OPENAI_BASE_URL: baseURL } = process.env;
const gateway = createOpenAICompatible({ name: "spass", baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true });
const model = gateway(CHAT_MODEL);
const maxRetries = 0;

const cities = [];
const result = await generateText({
  model,
  maxRetries,
  prompt: "What is the weather in 'Berlin'?",
  stopWhen: stepCountIs(4),
  tools: {
    weather: tool({
      description: "Return the weather of a city.",
      inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => {
        cities.push(city);
        return { degrees: 11 };
      },
    }),
  },
});
assert.match(result.text, /^Hello!/);
assert.deepEqual(cities, ["Berlin"]);

const stream = streamText({ model, maxRetries, prompt: "Hi" });
let pieces = 0;
for await (const piece of stream.textStream) pieces += piece ? 1 : 0;
assert.ok(pieces > 1);
assert.match(await stream.text, /^Hello!/);
assert.ok((await stream.usage).totalTokens > 0);

const { object } = await generateObject({
  model,
  maxRetries,
  schema: z.object({ name: z.string(), age: z.number().int() }),
  prompt: "'Ada' is 36.",
});
assert.deepEqual(object, { name: "Ada", age: 36 });

const values = Array.from({ length: 600 }, (_, number) => `text ${number}`);
const { embeddings } = await embedMany({ model: gateway.embeddingModel(EMBEDDING_MODEL), maxRetries, values });
assert.deepEqual(new Set(embeddings.map((row) => row.length)), new Set([8]));
assert.equal(embeddings.length, 600);
