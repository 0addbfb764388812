import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { Ollama } from "ollama";
import OpenAI from "openai";
import { z } from "zod";

const url = process.env.URL;
const hello = [{ role: "user", content: "SAY <<Hello there.>>" }];
const call = [{ role: "user", content: 'CALL <<{"name": "add", "arguments": {"a": 2, "b": 3}}>>' }];
const add = { type: "object", properties: { a: { type: "integer" }, b: { type: "integer" } }, required: ["a", "b"] };

const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const told = await openai.chat.completions.create({ model: "lab", messages: hello });
assert.equal(told.choices[0].message.content, "Hello there.");
const stream = openai.chat.completions.stream({ model: "lab", messages: hello });
assert.equal(await stream.finalContent(), "Hello there.");
const runner = openai.chat.completions.runTools({
  model: "lab",
  messages: call,
  tools: [{ type: "function", function: { name: "add", parameters: add, parse: JSON.parse, function: ({ a, b }) => `${a + b}` } }],
});
assert.equal(await runner.finalContent(), "The tool said: 5");
assert.equal((await openai.responses.create({ model: "lab", input: hello })).output_text, "Hello there.");

const anthropic = new Anthropic({ baseURL: url, apiKey: "none" });
const asked = { model: "lab", max_tokens: 50 };
assert.equal((await anthropic.messages.create({ ...asked, messages: hello })).content[0].text, "Hello there.");
assert.equal(await anthropic.messages.stream({ ...asked, messages: hello }).finalText(), "Hello there.");
const used = await anthropic.messages.create({ ...asked, messages: call, tools: [{ name: "add", input_schema: add }] });
assert.deepEqual(used.content.at(-1).input, { a: 2, b: 3 });

const ollama = new Ollama({ host: url });
assert.equal((await ollama.chat({ model: "lab", messages: hello })).message.content, "Hello there.");
let text = "";
for await (const part of await ollama.chat({ model: "lab", messages: hello, stream: true })) text += part.message.content;
assert.equal(text, "Hello there.");
assert.deepEqual((await ollama.list()).models.map((model) => model.name), ["lab"]);

const model = createOpenAICompatible({ name: "outrider", baseURL: `${url}/v1` })("lab");
assert.equal((await generateText({ model, messages: hello })).text, "Hello there.");
assert.equal(await streamText({ model, messages: hello }).text, "Hello there.");
const tools = { add: tool({ description: "Add.", inputSchema: z.object({ a: z.number(), b: z.number() }), execute: async ({ a, b }) => a + b }) };
assert.equal((await generateText({ model, messages: call, tools, stopWhen: stepCountIs(3) })).text, "The tool said: 5");
const output = Output.object({ schema: z.object({ name: z.string() }) });
const city = await generateText({ model, prompt: 'SAY <<{"name": "Paris"}>>', output });
assert.deepEqual(city.output, { name: "Paris" });
