// The openai and ollama packages, unmodified, against helm-gateway; run by test_gateway_npm.py.
//
//   node gateway_npm.mjs PACKAGE_FOLDER demo|ollama|tools|abort URL KEY
//
// "demo", "ollama": the demo model. "tools": a stand-in daemon that answers a question with a call and a result with a text;
// "abort": one that answers slowly and for ever.
import path from "node:path";
import { pathToFileURL } from "node:url";

const [folder, what, url, key] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(path.join(folder, "node_modules", file)).href);
const { default: OpenAI } = await load("openai/index.mjs");
const { Ollama } = await load("ollama/dist/index.mjs");
const client = new OpenAI({ baseURL: url + "/v1", apiKey: key, maxRetries: 0 });
const user = (content) => [{ role: "user", content }];
const verse = "And it came to pass in those days, that";

function check(name, good, detail) {
  console.log(`${good ? "ok  " : "FAIL"} ${what === "ollama" ? "ollama" : "openai"}: ${name}${good ? "" : "  [" + JSON.stringify(detail ?? "").slice(0, 1000) + "]"}`);
}
async function refused(name, kind, code, call) {
  try {
    const answer = await call();
    check(name, false, answer);
  } catch (error) {
    check(name, error instanceof kind && error.code === code && error.requestID, { kind: error.constructor.name, code: error.code, message: error.message });
  }
}
async function metric(name) {
  const text = await (await fetch(url + "/metrics", { headers: { Authorization: "Bearer " + key } })).text();
  return Number(text.match(new RegExp(`^${name} (\\S+)$`, "m"))[1]);
}
async function until(condition) {
  for (let i = 0; i < 400; i++) {
    if (await condition()) return true;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  return false;
}

async function demo() {
  const models = [];
  for await (const model of client.models.list()) models.push(model.id);
  check("models.list", models.join() === "demo", models);
  check("models.retrieve", (await client.models.retrieve("demo")).object === "model");

  const base = { model: "demo", messages: user(verse), max_completion_tokens: 16, temperature: 0 };
  const whole = await client.chat.completions.create(base);
  const text = whole.choices[0].message.content;
  check("chat", text.length > 0 && whole.choices[0].finish_reason === "length" && whole.usage.completion_tokens === 16, whole);

  let streamed = "", usage = null;
  for await (const chunk of await client.chat.completions.create({ ...base, stream: true, stream_options: { include_usage: true } })) {
    streamed += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  check("streaming", streamed === text && usage.total_tokens === whole.usage.total_tokens, { streamed, usage });

  const runner = client.chat.completions.stream(base);
  const events = [];
  runner.on("content", (piece) => events.push(piece));
  check("the streaming helper", (await runner.finalContent()) === text && events.join("") === text, events);

  const logs = (await client.chat.completions.create({ ...base, logprobs: true, top_logprobs: 2 })).choices[0].logprobs.content;
  check("logprobs", logs.length === 16 && logs.map((t) => t.token).join("") === text && logs.every((t) => t.top_logprobs.length === 2), logs[0]);

  const several = await client.chat.completions.create({ ...base, temperature: 1, seed: 5, n: 3, user: "test" });
  check("n and seed", several.choices.map((c) => c.index).join() === "0,1,2" && new Set(several.choices.map((c) => c.message.content)).size > 1, several);

  const stopped = await client.chat.completions.create({ ...base, stop: [text.slice(6, 14)] });
  check("stop", stopped.choices[0].message.content === text.slice(0, 6) && stopped.choices[0].finish_reason === "stop", stopped);

  const completion = await client.completions.create({ model: "demo", prompt: verse, max_tokens: 8, logprobs: 1 });
  check("completions", completion.choices[0].text.length > 0 && completion.choices[0].logprobs.tokens.length === 8, completion);

  const schema = { type: "object", additionalProperties: false, required: ["book", "verse"],
    properties: { book: { type: "string", maxLength: 10 }, verse: { type: "integer", minimum: 1, maximum: 99 } } };
  const format = (schema) => ({ type: "json_schema", json_schema: { name: "x", strict: true, schema } });
  const asked = { ...base, temperature: 1, seed: 11, max_completion_tokens: 200 };
  const parsed = (await client.chat.completions.parse({ ...asked, response_format: format(schema) })).choices[0].message.parsed;
  check("JSON schema, parsed", Object.keys(parsed).join() === "book,verse" && parsed.verse >= 1 && parsed.verse <= 99 && parsed.book.length <= 10, parsed);
  const pieces = client.chat.completions.stream({ ...asked, response_format: format(schema) });
  const final = JSON.parse(await pieces.finalContent());
  check("... and streamed", Number.isInteger(final.verse) && typeof final.book === "string", final);
  const any = await client.chat.completions.create({ ...asked, max_completion_tokens: 400, response_format: { type: "json_object" } });
  check("json_object", any.choices[0].finish_reason === "length" || typeof JSON.parse(any.choices[0].message.content) === "object", any.choices[0]);
  await refused("a schema with what is not supported", OpenAI.BadRequestError, "unsupported_value",
    () => client.chat.completions.create({ ...base, response_format: format({ type: "array", uniqueItems: true }) }));
  await refused("a call that is forced, of no tools", OpenAI.BadRequestError, "invalid_value",
    () => client.chat.completions.create({ ...base, tool_choice: "required" }));
  const vectors = (await client.embeddings.create({ model: "demo", input: [verse, "x"] })).data.map((d) => d.embedding);
  const plain = (await client.embeddings.create({ model: "demo", input: verse, encoding_format: "float" })).data[0].embedding;
  check("embeddings", vectors.length === 2 && plain.length === 256 && vectors[0].every((v, i) => Math.abs(v - plain[i]) < 1e-5), vectors.map((v) => v.length));
  await refused("dimensions are refused", OpenAI.BadRequestError, "unsupported_parameter", () => client.embeddings.create({ model: "demo", input: "x", dimensions: 8 }));
  await responses(text);
  await refused("a context that is too long", OpenAI.BadRequestError, "context_length_exceeded",
    () => client.chat.completions.create({ ...base, messages: user("word ".repeat(3000)) }));
  await refused("... before a stream", OpenAI.BadRequestError, "context_length_exceeded",
    () => client.chat.completions.create({ ...base, max_completion_tokens: 5000, stream: true }));
  await refused("a model that there is not", OpenAI.NotFoundError, "model_not_found", () => client.chat.completions.create({ ...base, model: "gpt-x" }));
  await refused("a wrong key", OpenAI.AuthenticationError, "invalid_api_key", () => client.withOptions({ apiKey: "sk-wrong" }).models.list());
}

// `text`: what a chat of the same says.
async function responses(text) {
  const base = { model: "demo", input: verse, max_output_tokens: 16, temperature: 0, store: false, metadata: { a: "b" } };
  const whole = await client.responses.create(base);
  check("responses", whole.output_text === text && whole.status === "incomplete" && whole.incomplete_details.reason === "max_output_tokens" &&
    whole.usage.output_tokens === 16 && whole.usage.total_tokens === whole.usage.input_tokens + 16 && whole.metadata.a === "b" && whole.id.startsWith("resp_"), whole);
  const items = await client.responses.create({ ...base, input: [{ role: "user", content: [{ type: "input_text", text: verse }] }] });
  check("... of items", items.output_text === text, items);
  const events = [];
  const stream = client.responses.stream({ ...base, include: ["message.output_text.logprobs"], top_logprobs: 1 });
  for await (const event of stream) events.push(event);
  const final = await stream.finalResponse();
  const types = events.map((e) => e.type);
  check("... streamed, by the package's own accumulator", final.output_text === text && final.usage.output_tokens === 16, final);
  check("... its events in OpenAI's order", types.slice(0, 4).join() === "response.created,response.in_progress,response.output_item.added,response.content_part.added" &&
    types.slice(-4).join() === "response.output_text.done,response.content_part.done,response.output_item.done,response.incomplete" &&
    types.slice(4, -4).every((t) => t === "response.output_text.delta") && events.every((e, i) => e.sequence_number === i), types);
  check("... with logprobs", final.output[0].content[0].logprobs.length === 16 && final.output[0].content[0].logprobs.every((t) => t.top_logprobs.length === 1) &&
    events.flatMap((e) => (e.type === "response.output_text.delta" ? e.logprobs : [])).map((t) => t.token).join("") === text, final.output[0]);
  const parsed = await client.responses.parse({ ...base, max_output_tokens: 200, temperature: 1, text: { format: { type: "json_schema", name: "verse", strict: true,
    schema: { type: "object", required: ["verse"], additionalProperties: false, properties: { verse: { type: "integer" } } } } } });
  check("... a JSON schema", parsed.status === "completed" && Number.isInteger(JSON.parse(parsed.output_text).verse), parsed);
  for (const [field, value] of Object.entries({ background: true, truncation: "auto", conversation: "c" }))
    await refused(`... ${field} is refused`, OpenAI.BadRequestError, "unsupported_parameter", () => client.responses.create({ ...base, [field]: value }));
  await refused("... a picture", OpenAI.BadRequestError, "unsupported_value", () => client.responses.create({ ...base, input: [{ role: "user", content: [{ type: "input_image", image_url: "x" }] }] }));
  await refused("... a response that is not known", OpenAI.BadRequestError, "previous_response_not_found",
    () => client.responses.create({ ...base, previous_response_id: "resp_1" }));
  await refused("... an item that is not known", OpenAI.NotFoundError, null, () => client.responses.create({ ...base, input: [{ type: "item_reference", id: "x" }] }));
  const without = await client.responses.create({ ...base, metadata: { a: "b" }, reasoning: { effort: "low" }, tools: [{ type: "web_search" }] }).withResponse();
  const ignored = without.response.headers.get("x-helm-ignored") ?? "";
  check("... another tool than a function is left out, hints are taken", without.data.output_text.length > 0 && ignored.includes("tools.web_search") && ignored.includes("metadata"), ignored);
}

// A call, its result, the answer; whole and streamed.
async function responseTools() {
  const tools = [{ type: "function", name: "get_weather", description: "Weather of a city", strict: false, parameters: { type: "object", properties: { city: { type: "string" } } } }];
  const input = [{ role: "user", content: "What is the weather in Bern?" }];
  const first = await client.responses.create({ model: "any", input, tools });
  const call = first.output[0];
  check("responses: a call", first.output.length === 1 && call.type === "function_call" && call.name === "get_weather" && JSON.parse(call.arguments).city === "Bern" && call.call_id && first.status === "completed", first);
  const second = await client.responses.create({ model: "any", tools, input: [...input, ...first.output, { type: "function_call_output", call_id: call.call_id, output: "rain in Bern" }] });
  check("... its result, the answer", second.output_text === "It rains.", second);
  const types = [];
  const stream = client.responses.stream({ model: "any", input, tools });
  for await (const event of stream) types.push(event.type);
  const streamed = await stream.finalResponse();
  const kinds = types.filter((t, i) => t !== types[i - 1]); // arguments come in as many pieces as there are
  check("... streamed", kinds.join() === ["created", "in_progress", "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done", "completed"].map((t) => "response." + t).join() &&
    JSON.parse(streamed.output[0].arguments).city === "Bern", { types, streamed });
  const forced = await client.responses.create({ model: "any", input, tools: [{ ...tools[0], strict: true }], tool_choice: { type: "function", name: "get_weather" } });
  check("... that is forced", forced.output[0].type === "function_call", forced);
}

async function tools() {
  const asked = [];
  const runner = client.chat.completions.runTools({
    model: "any", messages: user("What is the weather in Bern?"), stream: false,
    tools: [{ type: "function", function: { name: "get_weather", description: "Weather of a city", parse: JSON.parse,
      parameters: { type: "object", properties: { city: { type: "string" } } },
      function: ({ city }) => { asked.push(city); return "rain in " + city; } } }],
  });
  check("runTools: a call, its result, the answer", (await runner.finalContent()) === "It rains." && asked.join() === "Bern", asked);
  const streaming = client.chat.completions.runTools({
    model: "any", messages: user("What is the weather in Bern?"), stream: true,
    tools: [{ type: "function", function: { name: "get_weather", description: "Weather of a city", parse: JSON.parse,
      parameters: { type: "object", properties: { city: { type: "string" } } },
      function: ({ city }) => { asked.push(city); return "rain in " + city; } } }],
  });
  check("... and streamed", (await streaming.finalContent()) === "It rains." && asked.join() === "Bern,Bern", asked);
  await responseTools();
  const weather = { type: "function", function: { name: "get_weather", strict: true, parameters: { type: "object", required: ["city"],
    additionalProperties: false, properties: { city: { type: "string" } } } } };
  for (const tool_choice of ["required", { type: "function", function: { name: "get_weather" } }]) {
    const forced = (await client.chat.completions.create({ model: "any", messages: user("Weather?"), tools: [weather], tool_choice })).choices[0];
    check(`tool_choice ${JSON.stringify(tool_choice)}`, forced.message.tool_calls.length === 1 && forced.finish_reason === "tool_calls" &&
      JSON.parse(forced.message.tool_calls[0].function.arguments).city === "Bern", forced);
  }
  await refused("a tool that there is not", OpenAI.BadRequestError, "invalid_value", () => client.chat.completions.create({
    model: "any", messages: user("Weather?"), tools: [weather], tool_choice: { type: "function", function: { name: "get_rich" } } }));
}

async function ollama() {
  const local = new Ollama({ host: url, headers: { Authorization: "Bearer " + key } });
  const ask = { model: "demo", messages: user(verse), options: { num_predict: 12, temperature: 0 } };
  check("version", /^\d+\./.test((await local.version()).version));
  check("list", (await local.list()).models[0].name === "demo:latest");
  check("ps", (await local.ps()).models[0].model === "demo:latest");
  check("show", (await local.show({ model: "demo" })).capabilities.includes("completion"));
  const whole = await local.chat(ask);
  check("chat", whole.done && whole.eval_count === 12 && whole.message.content.length > 0, whole);
  let streamed = "";
  for await (const part of await local.chat({ ...ask, stream: true })) streamed += part.message.content;
  check("chat, streaming", streamed === whole.message.content, streamed);
  check("generate", (await local.generate({ model: "demo", prompt: verse, options: ask.options })).response === streamed);
  const shaped = await local.chat({ ...ask, options: { num_predict: 60, temperature: 1, seed: 2 }, format: { type: "object", required: ["a"], properties: { a: { type: "boolean" } } } });
  check("a format is kept to", typeof JSON.parse(shaped.message.content).a === "boolean", shaped);
  const refusal = await local.chat({ ...ask, format: { not: {} } }).catch((error) => error);
  check("what is not supported is refused by its name", refusal.status_code === 400 && refusal.message.includes("'not'"), refusal);
}

// Before a daemon that would go on for ever.
async function abort() {
  const base = { model: "any", messages: user("Hello") };
  const cancelled = (count) => until(async () => (await metric("helm_gateway_cancelled_total")) === count && (await metric("helm_gateway_generations_open")) === 0);
  let chunks = 0;
  for await (const chunk of await client.chat.completions.create({ ...base, stream: true })) if (chunk.choices.length && ++chunks === 3) break;
  check("leaving the loop over a stream cancels", await cancelled(1));
  const controller = new AbortController();
  const pending = client.chat.completions.create(base, { signal: controller.signal });
  await until(async () => (await metric("helm_gateway_generations_open")) === 1);
  controller.abort();
  const error = await pending.catch((failure) => failure);
  check("abort of a whole answer cancels", error instanceof OpenAI.APIUserAbortError && (await cancelled(2)), error);
  const local = new Ollama({ host: url, headers: { Authorization: "Bearer " + key } });
  const ended = await (async () => { for await (const part of await local.chat({ ...base, stream: true })) if (part.message.content) local.abort(); })().catch((failure) => failure);
  check("ollama's abort cancels", ended?.name === "AbortError" && (await cancelled(3)), ended);
}

await { demo, tools, ollama, abort }[what]();
