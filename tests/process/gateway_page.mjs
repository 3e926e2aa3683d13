// The gateway's page in headless Chromium, driven by its debugging protocol; run by test_gateway_page.py.
//
//   node --experimental-websocket gateway_page.mjs CHROMIUM FOLDER URL
import { spawn } from "node:child_process";
import fs from "node:fs";

const [program, folder, url] = process.argv.slice(2);
const verse = "And it came to pass in those days, that";
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
function check(name, good, detail) {
  console.log(`${good ? "ok  " : "FAIL"} page: ${name}${good ? "" : "  [" + JSON.stringify(detail ?? "").slice(0, 1000) + "]"}`);
}

const chrome = spawn(program, ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", `--user-data-dir=${folder}`, "--remote-debugging-port=0", "about:blank"], { stdio: "ignore" });
process.on("exit", () => chrome.kill("SIGKILL"));
let target;
for (let i = 0; i < 300 && !target; i++) {
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
const waiting = new Map(), trouble = [], asked = new Set();
socket.onmessage = ({ data }) => {
  const message = JSON.parse(data), params = message.params;
  if (message.id) waiting.get(message.id)(message.result ?? message.error);
  if (message.method === "Runtime.exceptionThrown") trouble.push(params.exceptionDetails.text);
  if (message.method === "Log.entryAdded" && params.entry.level === "error") trouble.push(params.entry.text);
  if (message.method === "Network.requestWillBeSent") asked.add(new URL(params.request.url).origin);
};
const call = (method, params = {}) => new Promise((resolve) => { waiting.set(++last, resolve); socket.send(JSON.stringify({ id: last, method, params })); });
const run = async (expression) => (await call("Runtime.evaluate", { expression, returnByValue: true })).result?.value;
async function until(expression) {
  for (let i = 0; i < 400; i++, await sleep(25)) if (await run(expression)) return true;
  return false;
}
const size = (width) => call("Emulation.setDeviceMetricsOverride", { width, height: 800, deviceScaleFactor: 1, mobile: width < 500 });
const say = (text) => run(`$("text").value = ${JSON.stringify(text)}; $("form").requestSubmit()`);

for (const domain of ["Runtime", "Log", "Page", "Network"]) await call(`${domain}.enable`);
await size(1100);
await call("Page.navigate", { url });
check("the model and its state", await until(`document.title.startsWith("demo") && $("state").textContent.startsWith("ready")`), await run("document.title"));
await run(`$("temperature").value = 0; $("max").value = 20`);
await say(verse);
check("an answer is streamed into it", await until(`turns.length === 2 && !running`), await run(`$("talk").textContent`));
check("... with its tokens and speed", /\+ 20 tokens, the first after .* token\/s; cut at its longest/.test(await run(`document.querySelector(".note.turn").textContent`)));
await say("In the beginning");
check("a conversation goes on", await until(`turns.length === 4 && !running`), await run(`$("talk").textContent`));
check("the machine is shown", await until(`["Plan", "Host memory", "KV pages", "Where a step's time goes"].every((t) => $("machine").textContent.includes(t))`), await run(`$("machine").textContent`));
await run(`$("clear").click(); $("max").value = 1900; $("temperature").value = 1`);
await say("Tell me all of it");
await until(`document.querySelector(".assistant")?.textContent.length > 20 || !running`);
await run(`if (running) $("form").requestSubmit()`);
check("it can be stopped", await until(`!running`));
await run(`$("temperature").value = 500; $("text").value = "x"; $("form").requestSubmit()`);
check("a refusal is shown", await until(`document.querySelector(".error")?.textContent.includes("temperature")`), await run(`$("talk").textContent`));
await size(390);
check("a phone's width is enough for the chat", await until(`document.documentElement.scrollWidth <= 390 && $("send").getBoundingClientRect().right <= 390`));
await run(`$("more").click()`);
check("... and for the machine", await until(`document.documentElement.scrollWidth <= 390 && $("machine").getBoundingClientRect().height > 100`));
check("no other host is asked", [...asked].join() === new URL(url).origin, [...asked]);
check("no errors but the refusal", trouble.length === 1 && trouble[0].includes("400"), trouble);
process.exit(0);
