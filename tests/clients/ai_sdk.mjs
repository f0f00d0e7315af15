// The AI SDK, with its providers openai and openai-compatible.
import assert from "node:assert";
import test from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { openai } from "@ai-sdk/openai";
import { generateText, jsonSchema, Output, streamText } from "ai";

const prompt = "A shop has 5 apples and buys 7 more. How many apples are there?";
const ANSWER = /The answer is 12\./;
const compatible = createOpenAICompatible({ name: "dilaserve", baseURL: process.env.OPENAI_BASE_URL })("demo");

test("compatible: text", async () => assert.match((await generateText({ model: compatible, prompt })).text, ANSWER));

test("compatible: stream", async () => {
  let text = "";
  for await (const part of streamText({ model: compatible, prompt }).textStream) text += part;
  assert.match(text, ANSWER);
});

test("openai.chat: text", async () => {
  assert.match((await generateText({ model: openai.chat("demo"), prompt })).text, ANSWER);
});

test("openai: text", async () => {
  assert.match((await generateText({ model: openai("demo"), prompt })).text, ANSWER);
});

test("compatible: object", { todo: "JSON mode is not served" }, async () => {
  const schema = jsonSchema({ type: "object", properties: { total: { type: "number" } }, required: ["total"] });
  const reply = await generateText({ model: compatible, prompt, output: Output.object({ schema }) });
  assert.equal(reply.output.total, 12);
});
