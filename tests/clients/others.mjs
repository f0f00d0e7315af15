// Further clients of Node.js, as in others.py.
import assert from "node:assert";
import test from "node:test";

const { OPENAI_BASE_URL: url, ANTHROPIC_BASE_URL: server } = process.env;
const prompt = "A shop has 5 apples and buys 7 more. How many apples are there?";
const asked = `${prompt} Reply in JSON with the keys "total".`;
const ANSWER = /The answer is 12\./;
const messages = [{ role: "user", content: prompt }];
const model = "demo-block";
const schema = { type: "object", properties: { total: { type: "integer" } }, required: ["total"], additionalProperties: false };
const input_schema = { type: "object", properties: { expression: { type: "string" } }, required: ["expression"] };
const calculator = { name: "calculator", input_schema, description: "", parse: (input) => input, run: ({ expression }) => (expression === "5+7" ? "12" : "unexpected") };

test("anthropic_node: tool runner", async () => {
  const { default: Anthropic } = await import("@anthropic-ai/sdk");
  const client = new Anthropic({ maxRetries: 0 });
  const final = await client.beta.messages.toolRunner({ model, max_tokens: 64, messages, tools: [{ type: "custom", ...calculator }] });
  assert.match(final.content.find((block) => block.type === "text").text, ANSWER);
});

test("anthropic_node: thinking and structured output", async () => {
  const { default: Anthropic } = await import("@anthropic-ai/sdk");
  const client = new Anthropic({ maxRetries: 0 });
  const thinking = { type: "adaptive" };
  assert.match((await client.messages.create({ model, max_tokens: 64, messages, thinking })).content[0].text, ANSWER);
  const output_config = { format: { type: "json_schema", schema } };
  const turns = [{ role: "user", content: asked }];
  const reply = await client.messages.create({ model, max_tokens: 64, messages: turns, output_config });
  assert.deepEqual(JSON.parse(reply.content[0].text), { total: 12 });
});

test("ai_sdk_others: anthropic", async () => {
  const { createAnthropic } = await import("@ai-sdk/anthropic");
  const { generateText } = await import("ai");
  const anthropic = createAnthropic({ baseURL: url, apiKey: "any" });
  assert.match((await generateText({ model: anthropic(model), prompt, maxOutputTokens: 64 })).text, ANSWER);
});

test("ai_sdk_others: mistral", async () => {
  const { createMistral } = await import("@ai-sdk/mistral");
  const { generateText } = await import("ai");
  const mistral = createMistral({ baseURL: url, apiKey: "any" });
  assert.match((await generateText({ model: mistral(model), prompt, seed: 7 })).text, ANSWER);
});

test("huggingface_inference: chat and schema", async () => {
  const { InferenceClient } = await import("@huggingface/inference");
  const client = new InferenceClient("any", { endpointUrl: url });
  assert.match((await client.chatCompletion({ model, messages })).choices[0].message.content, ANSWER);
  const response_format = { type: "json_object", value: schema };
  const turns = [{ role: "user", content: asked }];
  const reply = await client.chatCompletion({ model, messages: turns, response_format });
  assert.deepEqual(JSON.parse(reply.choices[0].message.content), { total: 12 });
});

test("mistralai_node: chat and models", async () => {
  const { Mistral } = await import("@mistralai/mistralai");
  const client = new Mistral({ serverURL: server, apiKey: "any" });
  assert.match((await client.chat.complete({ model, messages })).choices[0].message.content, ANSWER);
  assert.equal((await client.models.list()).data[0].id, model);
});

test("openai_agents_node: chat and responses", async () => {
  const { Agent, OpenAIProvider, Runner, setTracingDisabled } = await import("@openai/agents");
  setTracingDisabled(true);
  for (const useResponses of [false, true]) {
    const runner = new Runner({ modelProvider: new OpenAIProvider({ baseURL: url, apiKey: "any", useResponses }) });
    const found = await runner.run(new Agent({ name: "a", model }), prompt);
    assert.match(found.finalOutput, ANSWER);
  }
});

test("promptfoo: evaluate", async () => {
  process.env.PROMPTFOO_DISABLE_TELEMETRY = "1";
  const { default: promptfoo } = await import("promptfoo");
  const provider = { id: `openai:chat:${model}`, config: { apiBaseUrl: url, apiKey: "any", max_tokens: 64 } };
  const tests = [{ assert: [{ type: "contains", value: "The answer is 12." }] }];
  const found = await promptfoo.evaluate({ prompts: [prompt], providers: [provider], tests }, { cache: false });
  const { stats } = await found.toEvaluateSummary();
  assert.equal(stats.successes, 1);
});
