// The AI SDK, with its providers openai and openai-compatible.
import assert from "node:assert";
import test from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { openai } from "@ai-sdk/openai";
import { generateObject, generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";

const prompt = "A shop has 5 apples and buys 7 more. How many apples are there?";
const ANSWER = /The answer is 12\./;
const asked = `${prompt} Reply in JSON with the keys "total".`;
const options = { name: "dilaserve", baseURL: process.env.OPENAI_BASE_URL };
const compatible = createOpenAICompatible(options)("demo-block");
const structured = createOpenAICompatible({ ...options, supportsStructuredOutputs: true })("demo-block");

test("compatible: text", async () => assert.match((await generateText({ model: compatible, prompt })).text, ANSWER));

test("compatible: stream", async () => {
  let text = "";
  for await (const part of streamText({ model: compatible, prompt }).textStream) text += part;
  assert.match(text, ANSWER);
});

test("openai.chat: text", async () => {
  assert.match((await generateText({ model: openai.chat("demo-block"), prompt })).text, ANSWER);
});

test("openai: text", async () => {
  assert.match((await generateText({ model: openai("demo-block"), prompt })).text, ANSWER);
});

test("openai: a second turn names the first reply", async () => {
  const first = await generateText({ model: openai("demo-block"), prompt });
  const messages = [{ role: "user", content: prompt }, ...first.response.messages, { role: "user", content: prompt }];
  assert.ok((await generateText({ model: openai("demo-block"), messages })).text);
});

const schema = jsonSchema({ type: "object", properties: { total: { type: "number" } }, required: ["total"] });

test("compatible: object", async () => {
  for (const model of [compatible, structured]) {
    const reply = await generateText({ model, prompt: asked, output: Output.object({ schema }) });
    assert.equal(reply.output.total, 12);
  }
});

test("compatible: generateObject", async () => {
  for (const model of [compatible, structured]) {
    assert.equal((await generateObject({ model, prompt: asked, schema })).object.total, 12);
  }
});

test("openai.chat: generateObject", async () => {
  assert.equal((await generateObject({ model: openai.chat("demo-block"), prompt: asked, schema })).object.total, 12);
});

test("openai: generateObject", async () => {
  assert.equal((await generateObject({ model: openai("demo-block"), prompt: asked, schema })).object.total, 12);
});

const calculator = tool({
  inputSchema: jsonSchema({ type: "object", properties: { expression: { type: "string" } }, required: ["expression"] }),
  execute: async ({ expression }) => (expression === "5+7" ? "12" : `unexpected: ${expression}`),
});

test("compatible: tools", async () => {
  const reply = await generateText({ model: compatible, prompt, tools: { calculator }, stopWhen: stepCountIs(3) });
  assert.match(reply.text, ANSWER);
});

test("openai.chat: tools stream", async () => {
  let text = "";
  const model = openai.chat("demo-block");
  const stream = streamText({ model, prompt, tools: { calculator }, stopWhen: stepCountIs(3) });
  for await (const part of stream.textStream) text += part;
  assert.match(text, ANSWER);
});

test("openai: tools", async () => {
  const model = openai("demo-block");
  const reply = await generateText({ model, prompt, tools: { calculator }, stopWhen: stepCountIs(3) });
  assert.match(reply.text, ANSWER);
});
