// LangChain.js, the class ChatOpenAI.
import assert from "node:assert";
import test from "node:test";
import { ChatOpenAI } from "@langchain/openai";

const QUESTION = "A shop has 5 apples and buys 7 more. How many apples are there?";
const ANSWER = /The answer is 12\./;
const chat = new ChatOpenAI({ model: "demo-block", configuration: { baseURL: process.env.OPENAI_BASE_URL } });

test("invoke", async () => assert.match((await chat.invoke(QUESTION)).text, ANSWER));

test("stream", async () => {
  let text = "";
  for await (const chunk of await chat.stream(QUESTION)) text += chunk.text;
  assert.match(text, ANSWER);
});

test("batch", async () => {
  for (const reply of await chat.batch([QUESTION, QUESTION])) assert.match(reply.text, ANSWER);
});
