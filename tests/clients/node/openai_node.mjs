// Call the gateway through OpenAI's package for Node: chat, stream, tool runner, typed answers, embeddings, models and errors.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const { CHAT_MODEL: model, EMBEDDING_MODEL: embedding } = process.env;
const client = new OpenAI({ maxRetries: 0 });
const messages = [{ role: "user", content: "Hi" }];

const completion = await client.chat.completions.create({ model, messages });
assert.match(completion.choices[0].message.content, /^Hello!/);
assert.ok(completion.usage.total_tokens > 0);
assert.equal(typeof completion.usage.cost, "number");

let text = "";
for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
  text += chunk.choices[0]?.delta?.content ?? "";
}
assert.match(text, /^Hello!/);

const cities = [];
const runner = client.chat.completions.runTools({
  model,
  messages: [{ role: "user", content: "What is the weather in 'Berlin'?" }],
  tools: [
    zodFunction({
      name: "weather",
      parameters: z.object({ city: z.string() }),
      function: ({ city }) => {
        cities.push(city);
        return { degrees: 11 };
      },
    }),
  ],
});
assert.match(await runner.finalContent(), /^Hello!/);
assert.deepEqual(cities, ["Berlin"]);

const Person = z.object({ name: z.string(), age: z.number().int() });
const typed = await client.chat.completions.parse({
  model,
  messages: [{ role: "user", content: "'Ada' is 36." }],
  response_format: zodResponseFormat(Person, "person"),
});
assert.deepEqual(typed.choices[0].message.parsed, { name: "Ada", age: 36 });

const vectors = await client.embeddings.create({ model: embedding, input: ["one", "two"] });
assert.deepEqual(vectors.data.map((row) => row.embedding.length), [8, 8]);

const modelIds = [];
for await (const entry of client.models.list()) modelIds.push(entry.id);
assert.ok(modelIds.includes(model));
assert.equal((await client.models.retrieve(model)).id, model);

await assert.rejects(client.models.retrieve("none"), OpenAI.NotFoundError);
await assert.rejects(client.chat.completions.create({ model, messages, temprature: 1 }), OpenAI.BadRequestError);
await assert.rejects(new OpenAI({ apiKey: "wrong" }).models.list(), OpenAI.AuthenticationError);
