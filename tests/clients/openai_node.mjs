// openai, the client for Node.js.
import assert from "node:assert";
import test from "node:test";
import OpenAI from "openai";

const QUESTION = "A shop has 5 apples and buys 7 more. How many apples are there?";
const ANSWER = /The answer is 12\./;
const messages = [{ role: "user", content: QUESTION }];
const client = new OpenAI();

test("chat", async () => {
  const reply = await client.chat.completions.create({ model: "demo-block", messages });
  assert.match(reply.choices[0].message.content, ANSWER);
});

test("stream", async () => {
  let text = "";
  for await (const chunk of await client.chat.completions.create({ model: "demo-block", messages, stream: true })) {
    text += chunk.choices[0]?.delta.content ?? "";
  }
  assert.match(text, ANSWER);
});

test("tools", async () => {
  const parameters = { type: "object", properties: { expression: { type: "string" } }, required: ["expression"] };
  const tools = [{ type: "function", function: { name: "calculator", parameters } }];
  const stream = client.chat.completions.stream({ model: "demo-block", messages, tools });
  const [call] = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
  assert.deepEqual(JSON.parse(call.function.arguments), { expression: "5+7" });
});

test("list of prompts", async () => {
  const reply = await client.completions.create({ model: "demo-block", prompt: [QUESTION, "2 + 3 = ?"] });
  assert.deepEqual(reply.choices.map((choice) => choice.index), [0, 1]);
});

test("models", async () => {
  assert.equal((await client.models.list()).data[0].id, "demo-block");
});

test("errors", async () => {
  await assert.rejects(client.chat.completions.create({ model: "other", messages }), OpenAI.NotFoundError);
});

test("responses", async () => {
  const reply = await client.responses.create({ model: "demo-block", input: QUESTION });
  assert.match(reply.output_text, ANSWER);
});
