// The gateway's page in headless Chromium, driven by its debugging protocol; run by test_gateway_page.py.
//
//   node --experimental-websocket gateway_page.mjs CHROMIUM FOLDER DEMO SCRIPTED
//
// DEMO is a gateway with the demo model, SCRIPTED one whose daemon says what test_gateway_page.py told it.
import { spawn } from "node:child_process";
import fs from "node:fs";
import os from "node:os";

const [program, folder, demo, scripted] = process.argv.slice(2);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
function check(name, good, detail) {
  console.log(`${good ? "ok  " : "FAIL"} page: ${name}${good ? "" : "  [" + JSON.stringify(detail ?? "").slice(0, 1000) + "]"}`);
}

// ---- the browser ----------------------------------------------------------------------------------------

const chrome = spawn(program, ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
  `--user-data-dir=${folder}`, "--remote-debugging-port=0", "about:blank"], { stdio: "ignore" });
process.on("exit", () => chrome.kill("SIGKILL"));
let target;
for (let left = 30; left > 0 && !target; left -= 0.1 * share()) {
  await sleep(100);
  try {
    const port = fs.readFileSync(`${folder}/DevToolsActivePort`, "utf8").split("\n")[0];
    target = (await (await fetch(`http://127.0.0.1:${port}/json`)).json()).find((t) => t.type === "page");
  } catch {}
}
if (!target) throw new Error("Chromium does not start");
const socket = new WebSocket(target.webSocketDebuggerUrl);
await new Promise((resolve) => (socket.onopen = resolve));
let last = 0;
const waiting = new Map(), trouble = [], asked = new Set(), sent = [];
socket.onmessage = ({ data }) => {
  const message = JSON.parse(data), params = message.params;
  if (message.id) waiting.get(message.id)(message.result ?? message.error);
  if (message.method === "Runtime.exceptionThrown") trouble.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
  if (message.method === "Log.entryAdded" && params.entry.level === "error") trouble.push(params.entry.text);
  if (message.method === "Network.requestWillBeSent") {
    if (!params.request.url.startsWith("data:")) asked.add(new URL(params.request.url).origin);
    if (params.request.postData) sent.push(JSON.parse(params.request.postData));
  }
};
const call = (method, params = {}) => new Promise((resolve) => { waiting.set(++last, resolve); socket.send(JSON.stringify({ id: last, method, params })); });
async function run(expression) {
  const { result, exceptionDetails } = await call("Runtime.evaluate", { expression, returnByValue: true, awaitPromise: true });
  return exceptionDetails ? exceptionDetails.exception?.description : result?.value;
}
// The part of a processor that a task gets now, as in processor.py: a second of a limit counts less beside other work.
function share() {
  const running = Number(fs.readFileSync("/proc/loadavg", "utf8").split(" ")[3].split("/")[0]) - 1;
  return Math.max(1 / 16, Math.min(1, os.availableParallelism() / Math.max(running, 1)));
}
async function until(expression, seconds = 20) {
  for (let left = seconds; left > 0; left -= 0.05 * share(), await sleep(50)) if ((await run(expression)) === true) return true;
  return false;
}
const size = (width, height = 800) => call("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: width < 500 });
async function key(name, modifiers = 0) {
  const code = { Enter: 13, Escape: 27 }[name], text = name === "Enter" ? "\r" : undefined;
  await call("Input.dispatchKeyEvent", { type: text ? "keyDown" : "rawKeyDown", key: name, code: name, windowsVirtualKeyCode: code, text, modifiers });
  await call("Input.dispatchKeyEvent", { type: "keyUp", key: name, code: name, windowsVirtualKeyCode: code, modifiers });
}
async function type(text) {
  await run(`el("text").focus()`);
  await call("Input.insertText", { text });
}
async function say(text) {
  await type(text);
  await key("Enter");
}
const idle = () => until(`el("send").textContent === "Send"`);
const turns = () => run(`[...document.querySelectorAll("#turns .turn")].map((t) => (t.querySelector(".bubble") ?? t.querySelector(":scope > .markdown")).innerText)`);
const shown = (selector) => run(`document.querySelector(${JSON.stringify(selector)})?.innerText ?? ""`);
const click = (selector) => run(`document.querySelector(${JSON.stringify(selector)}).click()`);
const names = () => run(`[...document.querySelectorAll("#list .name")].map((n) => n.textContent)`);
const go = async (url) => { await call("Page.navigate", { url }); await until(`el("state")?.textContent.startsWith("ready")`); };
const reload = async () => { await run(`document.body.dataset.old = "1"`); await call("Page.reload"); await until(`!document.body?.dataset.old && el("state")?.textContent.startsWith("ready")`); };
const set = (id, value) => run(`el(${JSON.stringify(id)}).value = ${JSON.stringify(value)}; el(${JSON.stringify(id)}).dispatchEvent(new Event("input", { bubbles: true }))`);

for (const domain of ["Runtime", "Log", "Page", "Network", "Accessibility"]) await call(`${domain}.enable`);
await call("Page.addScriptToEvaluateOnNewDocument", { source: `globalThis.el = (id) => document.getElementById(id)` });
await size(1280);

// ---- a real model ---------------------------------------------------------------------------------------

await go(demo);
check("the model and its state", await until(`document.title.startsWith("demo") && el("state").textContent.startsWith("ready")`), await run("document.title"));
await set("temperature", 0);
await set("max", 20);
await say("And it came to pass in those days, that");
check("an answer is streamed into it", (await idle()) && (await turns()).length === 2 && (await turns())[1].length > 20, await turns());
// where the browser had no turn meanwhile, all tokens came at once, which have no speed
for (let tries = 0; tries < 8 && !(await shown(".end .note")).includes("token/s"); tries++) await click(".turn:last-child .again"), await idle();
check("... with its tokens and speed", /\d+ \+ 20 tokens, the first after .* token\/s; cut at its longest/.test(await shown(".end .note")), await shown(".end"));
await say("In the beginning");
await idle();
check("a conversation goes on", (await turns()).length === 4 && sent.at(-1).messages.length === 3, sent.at(-1));
await click("#more");
check("the machine is shown", await until(`["Plan", "Host memory", "KV pages", "Where a step's time goes"].every((t) => el("machine").textContent.includes(t))`), await shown("#machine"));
await click("#more");
await click("#clear");
await set("max", 1900);
await set("temperature", 1);
await say("Tell me all of it");
await until(`document.querySelector(".assistant > .markdown")?.textContent.length > 20`);
if ((await shown("#send")) === "Stop") await click("#send");
check("an answer can be stopped", await until(`el("send").textContent === "Send" && document.querySelector(".end .note").textContent.length > 0`), await shown(".end"));
await click("#clear");
await set("temperature", 500);
await say("Is this kept?");
check("a refusal is shown", await until(`document.querySelector(".end .error")?.textContent.includes("temperature")`), await shown("#turns"));
check("... and the question is kept", (await turns())[0] === "Is this kept?");
await set("temperature", 0);
await set("max", 5);
await click(".again");
check("... and asked again", (await idle()) && (await turns()).length === 2 && (await turns())[1].length > 2, await turns());
const refusals = trouble.splice(0);
check("no errors but the refusal", refusals.length === 1 && refusals[0].includes("400"), refusals);

// ---- Markdown -------------------------------------------------------------------------------------------

await go(scripted);
await say("Say markdown");
await idle();
const has = (selector) => run(`Boolean(document.querySelector("#turns .assistant ${selector}"))`);
for (const what of ["strong", "em", "ol li", "table td", "blockquote", "pre code", "h3"]) check(`Markdown: ${what}`, await has(what), await shown("#turns"));
check("a link", await run(`(({ href, rel, target }) => href === "https://example.org/a" && rel.includes("noopener") && target === "_blank")(document.querySelector("#turns a"))`));
await run(`Object.defineProperty(navigator, "clipboard", { value: { writeText: async (t) => { globalThis.copied = t; } } }); document.querySelector(".copy").click()`);
check("code is copied", await until(`globalThis.copied === "for i in range(3):\\n    print(\\"<b>\\", i)" && document.querySelector(".copy").textContent === "Copied"`), await run("globalThis.copied"));
await run(`globalThis.copied = ""; document.addEventListener("copy", () => { globalThis.copied = document.activeElement.value; }, true);
  navigator.clipboard.writeText = async () => { throw new Error("not here"); }; document.querySelector(".copy").click()`);
check("... also where there is no clipboard", await until(`globalThis.copied.startsWith("for i in")`), await run("globalThis.copied"));
await click("#clear");
await say("Say hostile");
await idle();
await sleep(200);
check("hostile Markdown is text", (await run(`!globalThis.hacked && !document.querySelector("#turns :is(script, img, iframe, svg, style, object, form, [onclick], [onerror], [style])")`)) === true, await run(`el("turns").innerHTML`));
for (const text of ["<script>globalThis.hacked = 1</script>", "<img src=x onerror=globalThis.hacked=1>", "javascript:globalThis.hacked=1", "never closed"]) check(`... ${text}`, (await shown("#turns")).includes(text), await shown("#turns"));
check("... no link leads elsewhere", await run(`[...document.querySelectorAll("#turns a")].every((a) => /^(https?|mailto):/.test(a.protocol))`));
check("... and the page's policy was not asked", trouble.length === 0, trouble);

const grown = await run(`(async () => {
  const { Rendered } = await import("/page/render.mjs");
  const text = document.querySelector("#turns .assistant") ? ${JSON.stringify("# T\n\npara *a*\nb\n\n- x\n- y\n\n  z\n\n```js\na\n\nb\n```\n\n| a | b |\n|--|--|\n| 1 | 2 |\n\nTitle\n---\n1. one\n2. two\n> q\n\n```\nopen\n")} : "";
  for (let seed = 1; seed < 40; seed++) {
    const whole = new Rendered(document.createElement("div")), part = new Rendered(document.createElement("div"));
    whole.update(text, true);
    for (let at = 0, step = seed; at < text.length; step = (step * 7 + 3) % 11 + 1) part.update(text.slice(0, at += step), false);
    part.update(text, true);
    if (whole.box.innerHTML !== part.box.innerHTML) return seed + whole.box.innerHTML + part.box.innerHTML;
  }
  return "same";
})()`);
check("a text that grows becomes what the whole does", grown === "same", grown);
/* By how much other work on this machine lengthens the page's: many pieces of work, each of about a millisecond, beside as many of
 * the shortest, which nothing interrupted. */
const PACE = `function pace() {
  const took = [];
  for (let i = 0; i < 300; i++) {
    const begin = performance.now();
    let sum = 0;
    for (let k = 0; k < 400000; k++) sum = (sum * 31 + k) | 0;
    took.push(performance.now() - begin + (sum === 1));
  }
  took.sort((a, b) => a - b);
  return took.reduce((a, b) => a + b) / took.length / took[30];
}`;
const MEGABYTE = { prose: "Some **bold** words and `code` in a line of text.\n\n", code: "x = [1, 2, 3]\n", items: "- an item with *marks*\n", line: "one endless line " };
for (const [name, piece] of Object.entries(MEGABYTE)) {
  const [longest, elements, length, pace] = await run(`(async () => {
    ${PACE}
    const { Rendered } = await import("/page/render.mjs");
    const box = document.createElement("div"), text = ${name === "code" ? '"```py\\n" + ' : ""}${JSON.stringify(piece)}.repeat(Math.ceil(1048576 / ${piece.length}));
    box.className = "markdown";
    el("turns").append(box);
    const r = new Rendered(box);
    let longest = 0;
    const before = pace();
    for (let at = 0; at < text.length; at += 8192) {
      const begin = performance.now();
      r.update(text.slice(0, at + 8192), at + 8192 >= text.length);
      longest = Math.max(longest, performance.now() - begin);
    }
    const begin = performance.now();
    box.getBoundingClientRect();
    longest = Math.max(longest, performance.now() - begin);
    const all = box.querySelectorAll("*").length, length = box.textContent.length;
    box.remove();
    return [longest, all, length, (before + pace()) / 2];
  })()`);
  check(`1 MB of ${name}: ${Math.round(longest)} ms at most, ${elements} elements`, longest < 3000 * pace && elements < 25000 && length > 600000, { longest, elements, length, pace });
}

// ---- conversations --------------------------------------------------------------------------------------

await reload();
check("a reload keeps the conversation", (await turns())[0] === "Say hostile", await turns());
check("... and the list", JSON.stringify(await names()) === '["Say hostile","Say markdown"]', await names());
await run(`document.querySelectorAll("#list .name")[1].click()`);
check("another conversation is opened", (await turns())[0] === "Say markdown" && (await has("table td")));
await run(`document.querySelectorAll("#list li")[1].querySelector(".small").click()`);
await run(`document.querySelector("#list input").value = ""`);
await call("Input.insertText", { text: "A better name" });
await key("Enter");
await reload();
check("a conversation is renamed", (await names()).includes("A better name") && (await turns())[0] === "Say markdown", await names());
await run(`[...document.querySelectorAll("#list li")].find((l) => l.textContent.includes("Say hostile")).lastChild.click()`);
check("a conversation is deleted", JSON.stringify(await names()) === '["A better name"]', await names());
await click("#toast button");
check("... and comes back", (await names()).length === 2);
await run(`[...document.querySelectorAll("#list li")].find((l) => l.textContent.includes("Say hostile")).lastChild.click()`);
await reload();
check("... or not", JSON.stringify(await names()) === '["A better name"]', await names());

await click("#clear");
await say("Say slow");
await until(`document.querySelector(".assistant > .markdown").textContent.length > 10`);
await click("#clear");
check("a new conversation is empty while an answer goes on", (await turns()).length === 0 && (await shown("#send")) === "Send");
await say("Say quick");
await idle();
check("... and has its own question and answer", sent.at(-1).messages.length === 1 && JSON.stringify(await turns()) === '["Say quick","A quick answer."]', await turns());
check("the list says where an answer goes on", await run(`document.querySelector("#list li.busy .name")?.textContent === "Say slow"`), await shown("#list"));
await say("Now release");
await until(`!document.querySelector("#list li.busy") && el("send").textContent === "Send"`);
check("the other answer puts nothing here", JSON.stringify(await turns()) === '["Say quick","A quick answer.","Now release","Released."]', await turns());
await run(`[...document.querySelectorAll("#list .name")].find((n) => n.textContent === "Say slow").click()`);
check("... and is whole where it belongs", (await turns())[1] === Array.from({ length: 30 }, (_, i) => "slow" + i).join(" "), await turns());

await click(".user .edit");
await run(`document.querySelector(".editing textarea").value = "Say quick again"`);
await run(`document.querySelector(".editing .main").click()`);
await idle();
check("a message is edited", JSON.stringify(await turns()) === '["Say quick again","A quick answer."]' && sent.at(-1).messages.length === 1, await turns());
await say("Say quick");
await idle();
const before = sent.length;
await click(".turn:last-child .again");
await idle();
check("an answer is regenerated", sent.length === before + 1 && sent.at(-1).messages.length === 3 && (await turns()).length === 4, await turns());
await click("#turns .user .edit");
check("an edit says that later turns go", (await shown(".editing .main")) === "Send, and drop what follows");
await run(`document.querySelector(".editing textarea").focus()`);
await key("Escape");
check("... and can be left", (await turns()).length === 4 && !(await run(`Boolean(document.querySelector(".editing"))`)));

// ---- thinking, progress, keys, errors ---------------------------------------------------------------------

await click("#clear");
await say("Say thinking");
await idle();
check("thinking is closed", (await run(`(({ open, hidden }) => !open && !hidden)(document.querySelector("details.thinking"))`)) && /^Thought/.test(await shown(".thinking summary")), await shown("#turns"));
check("... and not in the answer", (await turns())[1] === "It is four.", await turns());
await click(".thinking summary");
check("... and can be read", await until(`document.querySelector(".thinking .markdown").innerText === "Two and two."`), await shown(".thinking"));
await reload();
check("... after a reload, too", (await run(`document.querySelector(".thinking summary").click()`), await until(`document.querySelector(".thinking .markdown").innerText === "Two and two."`)));
await say("And then");
await idle();
check("thinking is not sent back", sent.at(-1).messages.every((m) => !m.content.includes("Two and two")), sent.at(-1));

await click("#clear");
await say("Say reading");
check("a prompt that is read shows how far", await until(`/Reading the prompt: \\d+ of \\d+ tokens/.test(document.querySelector(".wait")?.innerText) && document.querySelector(".wait progress").value > 0`), await shown(".wait"));
check("... until the answer begins", (await idle()) && (await run(`document.querySelector(".wait").hidden`)) && (await turns())[1] === "It was read.");

await click("#clear");
await type("one");
await key("Enter", 8);
await type("two");
check("Shift+Enter is a new line", (await run(`el("text").value`)) === "one\ntwo", await run(`el("text").value`));
await set("text", "");
await say("Say endless");
await until(`document.querySelector(".assistant > .markdown")?.textContent.length > 5`);
await key("Enter");
check("Enter does not stop an answer", (await shown("#send")) === "Stop");
await key("Escape");
check("Esc does", (await until(`el("send").textContent === "Send"`)) && (await shown(".end .note")) === "stopped" && (await turns())[1].length > 0, await shown("#turns"));
await click("#clear");
await say("Say failing");
check("an answer that fails keeps its text", (await until(`document.querySelector(".end .error")?.textContent.includes("told to fail")`)) && (await turns())[1].length > 0, await shown("#turns"));
await click("#clear");
await say("Say endless");
await until(`document.querySelector(".assistant > .markdown")?.textContent.length > 5`);
await reload();
check("a reload amid an answer keeps its part", (await turns())[1].startsWith("endless") && (await shown(".end .note")).includes("cut off"), await shown("#turns"));
check("... and a new answer can be had", await has(".again"));

// ---- settings, theme --------------------------------------------------------------------------------------

const SETTINGS = { temperature: "0.5", top_p: "0.9", top_k: "40", min_p: "0.05", max: "50", seed: "7", system: "Be brief.", think: "low" };
for (const [id, value] of Object.entries(SETTINGS)) await set(id, value);
await reload();
check("settings are kept", JSON.stringify(await run(`Object.fromEntries(${JSON.stringify(Object.keys(SETTINGS))}.map((id) => [id, el(id).value]))`)) === JSON.stringify(SETTINGS));
await click("#clear");
await say("Say quick");
await idle();
const body = sent.at(-1);
check("... and sent", body.temperature === 0.5 && body.top_p === 0.9 && body.top_k === 40 && body.min_p === 0.05 && body.max_tokens === 50 && body.seed === 7 &&
  body.reasoning_effort === "low" && body.messages[0].role === "system" && body.messages[0].content === "Be brief." && (await turns())[1] === "A quick answer.", body);
await click("#reset");
check("... and given back", await run(`${JSON.stringify(Object.keys(SETTINGS))}.every((id) => el(id).value === "")`));
check("empty fields show the model's own", /^\d/.test(await run(`el("temperature").placeholder`)), await run(`el("temperature").placeholder`));
const theme = () => run(`document.documentElement.dataset.theme + " " + getComputedStyle(document.body).backgroundColor`);
const system = (value) => call("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value }] });
await system("light");
const light = await theme();
await system("dark");
check("the theme follows the system", light.startsWith("light ") && (await until(`document.documentElement.dataset.theme === "dark"`)) && (await theme()) !== light);
await click("#theme");
await reload();
check("... and can be switched", (await theme()) === light, await theme());
await click("#theme");
await system("light");
check("... and follows again", await until(`document.documentElement.dataset.theme === "light"`));

// ---- names, widths, a full storage ------------------------------------------------------------------------

await click("#tune");
const tree = (await call("Accessibility.getFullAXTree")).nodes.filter((n) => !n.ignored && ["button", "textbox", "spinbutton", "combobox", "link", "log", "navigation", "complementary"].includes(n.role?.value));
check("everything to use has a name", tree.length > 15 && tree.every((n) => n.name?.value), tree.filter((n) => !n.name?.value));
await click("#tune");
await run(`[...document.querySelectorAll("#list .name")].find((n) => n.textContent === "A better name").click()`);
for (const width of [390, 320]) {
  await size(width, 844);
  await reload();
  const fits = `document.documentElement.scrollWidth <= ${width}`;
  check(`${width} pixels are enough for the chat`, await until(`${fits} && el("send").getBoundingClientRect().right <= ${width} && el("talk").scrollWidth <= ${width} && el("side").getBoundingClientRect().width === 0`));
  await click("#menu");
  check("... for the list", await until(`${fits} && el("list").getBoundingClientRect().width > 200`));
  await key("Escape");
  await click("#tune");
  check("... for the settings", await until(`${fits} && el("settings").getBoundingClientRect().left >= 0 && el("seed").getBoundingClientRect().right <= ${width}`));
  await click("#more");
  check("... and for the machine", await until(`${fits} && el("machine").getBoundingClientRect().height > 100`));
  await key("Escape");
}
await size(1280);
await reload();
await run(`for (let part = 1 << 20; part; part >>= 1) try { for (let i = 0; ; i++) localStorage.setItem("filler" + part + "." + i, "x".repeat(part)); } catch {}`);
await click("#clear");
await say("Say quick");
await idle();
check("a full storage is said", (await run(`!el("unkept").hidden && el("unkept").textContent.includes("storage is full")`)) && (await turns())[1] === "A quick answer.", await shown("#unkept"));
await run(`for (const key of Object.keys(localStorage)) if (key.startsWith("filler")) localStorage.removeItem(key)`);
await say("Say quick");
await idle();
check("... until there is room", await run(`el("unkept").hidden`));
await reload();
check("... and then all is kept", (await turns()).length === 4);
await run(`localStorage.setItem("helm.talk.long", JSON.stringify({ id: "long", title: "Long", updated: Date.now(), turns: [{ role: "user", content: "x" }, { role: "assistant", content: "A *line* of text.\\n\\n".repeat(52000), ended: true }] })); location.hash = "#long"`);
await reload();
const begin = Date.now();
await type("still quick");
check(`an answer of 1 MB can be read: ${Date.now() - begin} ms for a word`, (await run(`el("text").value`)) === "still quick" && Date.now() - begin < 3000 && (await shown("#list")).includes("Long"));
check("no other host is asked", [...asked].sort().join() === [demo, scripted].map((u) => new URL(u).origin).sort().join(), [...asked]);
check("no other errors", trouble.length === 0, trouble);
const gone = new Promise((resolve) => chrome.once("exit", resolve));
call("Browser.close");
await Promise.race([gone, sleep(10000)]); // its processor time is the test's
process.exit(0);
