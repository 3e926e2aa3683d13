// The page: conversations, the answers that are under way, keys and panels. Loaded by index.html.
//
// A run is one answer under way: it has its conversation and its turn, so its text can go nowhere else, whatever is
// shown.
import { $, add, announce, button, toast } from "./dom.mjs";
import { Store, titleOf, DEFAULTS } from "./store.mjs";
import { ask, progressOf, question } from "./stream.mjs";
import { hint, look } from "./machine.mjs";
import * as talk from "./talk.mjs";
import { CUT_OFF } from "./talk.mjs";

const store = new Store(() => localStorage);
const settings = store.settings();
const runs = new Map(); // by conversation's id
let current = null,
  leaving = false;

const key = $("key");
try {
  key.value = sessionStorage.getItem("helm-key") ?? "";
} catch {
  /* then it is typed again */
}
const headers = () => ({
  "Content-Type": "application/json",
  ...(key.value ? { Authorization: "Bearer " + key.value } : {}),
});
const wide = matchMedia("(min-width: 720px)");

// ---- keeping --------------------------------------------------------------------------------------------

let warned = "";
function keep(c) {
  if (c.gone || !c.turns.length) return;
  const trouble = store.save(c);
  if (trouble && trouble !== warned) toast(trouble);
  $("unkept").hidden = !trouble;
  $("unkept").textContent = warned = trouble;
}

// ---- an answer ------------------------------------------------------------------------------------------

function statusOf(usage, first, begin, end, reason) {
  if (!usage || !first) return reason === "length" ? "cut at its longest" : "";
  const rest = (end - first) / 1000,
    more = usage.completion_tokens - 1;
  return (
    `${usage.prompt_tokens} + ${usage.completion_tokens} tokens, the first after ${((first - begin) / 1000).toFixed(2)} s` +
    (more > 0 && rest > 0.001 ? `, then ${(more / rest).toFixed(1)} token/s` : "") +
    (reason === "length" ? "; cut at its longest" : "")
  );
}

// The longer a paint takes, the rarer it is: the page has to answer its reader.
function paint(run) {
  if (run.painting) return;
  run.painting = true;
  const now = () => {
    run.painting = false;
    if (runs.get(run.conversation.id) === run) run.cost = talk.update(run.turn);
  };
  if (document.hidden) setTimeout(now, 500);
  else setTimeout(() => requestAnimationFrame(now), Math.min(2000, 3 * run.cost));
}

async function watch(run) {
  const begin = performance.now();
  while (!run.first && runs.get(run.conversation.id) === run) {
    const seconds = Math.floor((performance.now() - begin) / 1000);
    try {
      const response = await fetch("slots", { headers: headers(), signal: run.controller.signal });
      const found = response.ok && run.accepted ? progressOf(await response.json(), run.slot) : null;
      run.slot = found?.id ?? run.slot;
      run.text = (found?.text ?? "Waiting for the model") + (seconds > 1 ? `, ${seconds} s` : "");
      run.part = found?.part;
    } catch {
      /* the request itself says what is wrong */
    }
    if (!run.first) paint(run);
    await new Promise((resolve) => setTimeout(resolve, 300));
  }
}

function take(run, delta) {
  const { turn } = run,
    now = performance.now();
  const thought = delta.reasoning_content ?? "",
    text = delta.content ?? "";
  if (!thought && !text) return;
  run.first ||= now;
  if (thought) {
    run.thinking ||= now;
    turn.thinking = (turn.thinking ?? "") + thought;
    turn.thought_ms = now - run.thinking;
  }
  turn.content += text;
  if (now - run.kept > 3000) {
    run.kept = now;
    keep(run.conversation);
  }
  paint(run);
}

async function answer(c) {
  const turn = { role: "assistant", content: "" };
  const run = {
    conversation: c,
    turn,
    controller: new AbortController(),
    text: "Waiting for the model",
    part: undefined,
    slot: null,
    first: 0,
    thinking: 0,
    kept: performance.now(),
    cost: 0,
    painting: false,
    accepted: false,
  };
  const body = question(c.turns, settings),
    begin = performance.now();
  c.turns.push(turn);
  c.updated = Date.now();
  runs.set(c.id, run);
  keep(c);
  changed(c);
  if (c === current) talk.follow();
  setTimeout(() => watch(run), 150);
  try {
    const { usage, reason } = await ask(
      body,
      headers(),
      run.controller.signal,
      () => {
        run.accepted = true;
      },
      (delta) => take(run, delta),
    );
    turn.note = statusOf(usage, run.first, begin, performance.now(), reason);
    if (!turn.content && !turn.thinking)
      turn.note = "The answer is empty" + (turn.note ? ": " + turn.note : "");
  } catch (error) {
    if (leaving) turn.note = CUT_OFF;
    else if (error.name === "AbortError") turn.note = "stopped";
    else turn.error = error instanceof TypeError ? "The gateway cannot be reached" : error.message;
  }
  turn.ended = true;
  runs.delete(c.id);
  c.updated = Date.now();
  keep(c);
  changed(c);
  if (c === current) announce(turn.error ?? (turn.note === "stopped" ? "Stopped" : "The answer is complete"));
  look(headers);
}

function send(text) {
  current.turns.push({ role: "user", content: text });
  if (!current.title) current.title = titleOf(text);
  answer(current);
}

talk.open({
  running: (c) => runs.get(c.id) ?? null,
  again() {
    if (runs.has(current.id)) return;
    current.turns.pop();
    answer(current);
  },
  edit(turn, text) {
    if (runs.has(current.id)) return;
    const first = current.turns.indexOf(turn) === 0 && current.title === titleOf(turn.content);
    current.turns.length = current.turns.indexOf(turn);
    if (first) current.title = titleOf(text);
    send(text);
  },
});

// ---- conversations --------------------------------------------------------------------------------------

// A conversation has other turns, or its answer began or ended.
function changed(c) {
  if (c === current) {
    talk.refresh();
    showButtons();
  }
  drawList();
}

function showButtons() {
  const run = runs.has(current.id);
  $("send").textContent = run ? "Stop" : "Send";
  $("send").classList.toggle("stop", run);
  $("send").setAttribute("aria-label", run ? "Stop the answer" : "Send the message");
}

function go(c) {
  if (current && !current.turns.length) drafts.delete(current.id);
  if (current) drafts.set(current.id, $("text").value);
  current = c;
  $("text").value = drafts.get(c.id) ?? "";
  fit();
  talk.show(c);
  showButtons();
  drawList();
  history.replaceState(null, "", c.turns.length ? "#" + c.id : location.pathname);
  if (!wide.matches) setSide(false);
}
const drafts = new Map();

function fresh() {
  go(store.create());
  $("text").focus();
}

function remove(c) {
  runs.get(c.id)?.controller.abort();
  c.gone = true;
  store.remove(c.id);
  if (c === current) fresh();
  drawList();
  keepWarning();
  toast(`Deleted: ${c.title}`, [
    "Undo",
    () => {
      c.gone = false;
      for (const turn of c.turns) turn.ended = true;
      keep(c);
      drawList();
    },
  ]);
}
// Room was made: what could not be kept is tried again.
function keepWarning() {
  if (!warned) return;
  keep(current);
  if (!current.turns.length) $("unkept").hidden = !(warned = "");
}

function rename(c, row) {
  const field = document.createElement("input");
  field.value = c.title;
  field.maxLength = 120;
  field.setAttribute("aria-label", "Name of the conversation");
  let over = false;
  const done = (good) => {
    if (over) return;
    over = true;
    if (good && field.value.trim()) {
      c.title = field.value.trim();
      keep(c);
    }
    renaming = false;
    drawList();
  };
  field.onkeydown = (event) => {
    if (event.key === "Enter" && !event.isComposing) done(true);
    if (event.key === "Escape") {
      event.stopPropagation();
      done(false);
    }
  };
  field.onblur = () => done(true);
  renaming = true;
  row.replaceChildren(field);
  field.select();
}
let renaming = false;

function drawList() {
  if (renaming) return;
  const list = $("list"),
    all = store.list(),
    focus = document.activeElement;
  const focused = [...list.children].findIndex((li) => li.contains(focus)),
    place = focused < 0 ? 0 : [...list.children[focused].children].indexOf(focus);
  list.replaceChildren();
  for (const c of all) {
    const row = add(list, "li"),
      name = button(row, c.title, "name", "", () => go(c));
    name.title = c.title;
    if (c === current) name.setAttribute("aria-current", "true");
    if (runs.has(c.id)) {
      row.className = "busy";
      name.setAttribute("aria-label", c.title + ", an answer is under way");
    }
    button(row, "Rename", "small", `Rename ${c.title}`, () => rename(c, row));
    button(row, "Delete", "small", `Delete ${c.title}`, () => remove(c));
  }
  if (focused >= 0) list.children[Math.min(focused, all.length - 1)]?.children[Math.max(0, place)]?.focus();
  $("none").hidden = all.length > 0;
}

addEventListener("storage", (event) => {
  // another tab
  if (!event.key?.startsWith("helm.talk.")) return;
  const id = event.key.slice("helm.talk.".length);
  if (runs.has(id)) return;
  const c = store.read(event.key);
  if (c && current.id === id) go(c);
  drawList();
});
addEventListener("pagehide", () => {
  leaving = true; // requests end now, and not for a fault of the gateway
  for (const run of runs.values()) keep(run.conversation);
});
addEventListener("pageshow", () => {
  leaving = false;
});

// ---- the message ----------------------------------------------------------------------------------------

const text = $("text");
function fit() {
  text.style.height = "auto";
  text.style.height = Math.min(text.scrollHeight + 2, innerHeight * 0.4) + "px";
}
text.oninput = fit;
$("form").onsubmit = (event) => {
  event.preventDefault();
  const run = runs.get(current.id),
    message = text.value.trim();
  if (run) return run.controller.abort();
  if (!message) return;
  text.value = "";
  fit();
  send(message);
  history.replaceState(null, "", "#" + current.id);
};
text.onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!runs.has(current.id)) $("form").requestSubmit();
};
$("clear").onclick = fresh;
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented) return;
  if (!wide.matches && (document.body.dataset.panel || document.body.classList.contains("side"))) {
    setSide(false);
    setPanel("");
  } else {
    runs.get(current.id)?.controller.abort();
  }
});

// ---- panels and settings --------------------------------------------------------------------------------

function setSide(open) {
  document.body.classList.toggle("side", open);
  $("menu").setAttribute("aria-expanded", String(open));
  if (open && !wide.matches) setPanel("");
  if (wide.matches && settings.side !== (open ? "open" : "closed")) {
    settings.side = open ? "open" : "closed";
    store.saveSettings(settings);
  }
}
function setPanel(name) {
  document.body.dataset.panel = name;
  for (const [id, panel] of [
    ["tune", "settings"],
    ["more", "machine"],
  ])
    $(id).setAttribute("aria-expanded", String(panel === name));
  $("settings").hidden = name !== "settings";
  $("machine-panel").hidden = name !== "machine";
  if (name && !wide.matches) setSide(false);
  if (settings.panel !== name) {
    settings.panel = name;
    store.saveSettings(settings);
  }
}
$("menu").onclick = () => setSide(!document.body.classList.contains("side"));
$("tune").onclick = () => setPanel(document.body.dataset.panel === "settings" ? "" : "settings");
$("more").onclick = () => setPanel(document.body.dataset.panel === "machine" ? "" : "machine");
$("close").onclick = () => setPanel("");
$("scrim").onclick = () => {
  setSide(false);
  setPanel("");
};

const FIELDS = ["temperature", "top_p", "top_k", "min_p", "max", "seed", "system", "think"];
function fill() {
  for (const name of FIELDS) $(name).value = settings[name];
}
$("settings").addEventListener("input", (event) => {
  if (!FIELDS.includes(event.target.id)) return;
  settings[event.target.id] = event.target.value;
  const trouble = store.saveSettings(settings);
  if (trouble) toast(trouble);
});
$("settings").onsubmit = (event) => event.preventDefault();
$("reset").onclick = () => {
  for (const name of FIELDS) settings[name] = DEFAULTS[name];
  store.saveSettings(settings);
  fill();
};
key.onchange = () => {
  try {
    sessionStorage.setItem("helm-key", key.value);
  } catch {
    /* it holds for this page */
  }
  look(headers);
  hint(headers, $);
};

// ---- the start ------------------------------------------------------------------------------------------

fill();
setSide(wide.matches && settings.side !== "closed");
setPanel(wide.matches ? settings.panel : "");
// what was shown before a reload, otherwise something new
go(store.list().find((c) => c.id === location.hash.slice(1)) ?? store.create());
if (wide.matches) text.focus();
look(headers);
hint(headers, $);
setInterval(() => {
  if (!document.hidden) look(headers);
}, 2000);
