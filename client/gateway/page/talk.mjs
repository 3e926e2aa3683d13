// The turns of the conversation that is shown. Called by page.mjs, which owns the conversations. A turn's view lives
// as long as the turn is shown, so text that comes for another conversation has no view to go to.
import { $, add, button, copy } from "./dom.mjs";
import { Rendered } from "./render.mjs";

export const CUT_OFF = "cut off: the page was closed";
const views = new Map(); // by turn
let actions = null,
  conversation = null,
  following = true;

const talk = $("talk"),
  inner = $("turns");
const atEnd = () => talk.scrollHeight - talk.scrollTop - talk.clientHeight < 60;

export function follow() {
  talk.scrollTop = talk.scrollHeight;
  following = true;
  $("down").hidden = true;
}
let top = 0;
talk.addEventListener(
  "scroll",
  () => {
    // text that grows moves the end away: only a reader who scrolls up leaves it
    if (talk.scrollTop < top - 2 && !atEnd()) following = false;
    else if (atEnd()) following = true;
    top = talk.scrollTop;
    $("down").hidden = following || atEnd();
  },
  { passive: true },
);
$("down").onclick = follow;
talk.addEventListener("click", (event) => {
  const from = event.target.closest(".copy");
  if (from) copy(from.closest(".code").querySelector("code").textContent, from);
});

// ---- turns of the user ----------------------------------------------------------------------------------

function edit(turn, box) {
  const area = document.createElement("textarea"),
    bar = document.createElement("div");
  area.value = turn.content;
  area.rows = Math.min(12, turn.content.split("\n").length + 1);
  area.setAttribute("aria-label", "Edit this message");
  bar.className = "acts shown";
  const done = () => views.get(turn)?.draw();
  const send = () => {
    if (area.value.trim()) actions.edit(turn, area.value.trim());
  };
  const later = conversation.turns.length - conversation.turns.indexOf(turn) > 2;
  button(bar, later ? "Send, and drop what follows" : "Send", "main", "", send);
  button(bar, "Cancel", "", "", done);
  area.onkeydown = (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape") {
      event.stopPropagation();
      done();
    }
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      send();
    }
  };
  box.className = "turn user editing";
  box.replaceChildren(area, bar);
  area.focus();
}

function userView(turn) {
  const box = add(inner, "article", undefined, "turn user");
  box.setAttribute("aria-label", "You");
  const view = {
    box,
    draw() {
      box.className = "turn user";
      box.replaceChildren();
      add(box, "div", turn.content, "bubble");
      const bar = add(box, "div", undefined, "acts");
      button(bar, "Copy", "", "Copy this message", (e) => copy(turn.content, e.target));
      if (!actions.running(conversation))
        button(bar, "Edit", "edit", "Edit this message", () => edit(turn, box));
    },
  };
  view.update = () => {};
  return view;
}

// ---- turns of the model ---------------------------------------------------------------------------------

function thinkingView(box, turn) {
  const details = add(box, "details", undefined, "thinking"),
    summary = add(details, "summary");
  const text = new Rendered(add(details, "div", undefined, "markdown"));
  let shown = "";
  details.hidden = true;
  details.ontoggle = () => {
    if (details.open) text.update(turn.thinking ?? "", turn.ended);
  };
  return (running) => {
    details.hidden = !turn.thinking;
    if (!turn.thinking) return;
    const seconds = turn.thought_ms ? `Thought for ${(turn.thought_ms / 1000).toFixed(1)} s` : "Thought";
    const title = running && !turn.content ? "Thinking" : seconds;
    if (title !== shown) summary.textContent = shown = title;
    summary.classList.toggle("busy", Boolean(running && !turn.content));
    if (details.open) text.update(turn.thinking, !running);
  };
}

function waitingView(box) {
  const wait = add(box, "div", undefined, "wait"),
    line = add(wait, "div");
  const text = add(line, "span"),
    bar = document.createElement("progress");
  line.prepend(Object.assign(document.createElement("i"), { className: "dots" }));
  bar.max = 1;
  bar.setAttribute("aria-label", "How much of the prompt is read");
  wait.append(bar);
  return (run, turn) => {
    wait.hidden = !run || Boolean(turn.content || turn.thinking);
    if (wait.hidden) return;
    text.textContent = run.text;
    bar.hidden = run.part === undefined;
    if (run.part !== undefined) bar.value = run.part;
  };
}

function assistantView(turn) {
  const box = add(inner, "article", undefined, "turn assistant");
  box.setAttribute("aria-label", "Answer");
  const thinking = thinkingView(box, turn),
    waiting = waitingView(box);
  const text = new Rendered(add(box, "div", undefined, "markdown"));
  const end = add(box, "div", undefined, "end");
  const view = { box };
  view.update = () => {
    const run = actions.running(conversation),
      mine = run?.turn === turn ? run : null;
    box.setAttribute("aria-busy", String(Boolean(mine)));
    thinking(mine);
    waiting(mine, turn);
    text.update(turn.content, !mine);
  };
  view.draw = () => {
    view.update();
    const run = actions.running(conversation),
      last = conversation.turns.at(-1) === turn;
    end.replaceChildren();
    if (run?.turn === turn) return;
    if (turn.error) add(end, "p", turn.error, "error").setAttribute("role", "alert");
    const note = turn.note ?? (turn.ended ? "" : CUT_OFF);
    if (note) add(end, "p", note, "note");
    const bar = add(end, "div", undefined, "acts" + (last ? " shown" : ""));
    if (turn.content) button(bar, "Copy", "", "Copy this answer", (e) => copy(turn.content, e.target));
    if (last && !run)
      button(
        bar,
        turn.content ? "Regenerate" : "Try again",
        "again",
        turn.content ? "Regenerate this answer" : "Ask again",
        actions.again,
      );
  };
  return view;
}

// ---- the whole ------------------------------------------------------------------------------------------

export function open(handlers) {
  actions = handlers;
}

function append(turn) {
  const view = turn.role === "user" ? userView(turn) : assistantView(turn);
  views.set(turn, view);
  view.draw();
}

// Shows a conversation from its first turn.
export function show(c) {
  conversation = c;
  views.clear();
  inner.replaceChildren();
  for (const turn of c.turns) append(turn);
  document.body.classList.toggle("empty", !c.turns.length);
  follow();
}

// Turns were added, removed or ended.
export function refresh() {
  for (const [turn, view] of views) {
    if (conversation.turns.includes(turn)) {
      if (!view.box.classList.contains("editing")) view.draw();
    } else {
      view.box.remove();
      views.delete(turn);
    }
  }
  for (const turn of conversation.turns) if (!views.has(turn)) append(turn);
  document.body.classList.toggle("empty", !conversation.turns.length);
  if (following) follow();
}

// More text of a turn, where it is shown. Returns the milliseconds that it took.
export function update(turn) {
  const view = views.get(turn),
    begin = performance.now();
  if (!view) return 0;
  view.update();
  if (following) follow();
  else $("down").hidden = atEnd();
  return performance.now() - begin;
}
