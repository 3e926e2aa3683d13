// The machine's state: the panel beside the chat, from /status and /props. Called by page.mjs.
import { $, add } from "./dom.mjs";

let last = null,
  rate = null,
  planned = null;

const bytes = (n) => {
  let i = 0;
  for (; n >= 1024 && i < 4; i++) n /= 1024;
  return n.toFixed(i ? 2 : 0) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][i];
};
const percent = (part) => (100 * part).toFixed(0) + " %";

function rows(box, title, list) {
  if (!list.length) return;
  add(box, "h3", title);
  const table = add(box, "table");
  for (const [name, value, part] of list) {
    const row = add(table, "tr");
    add(row, "td", name);
    add(row, "td", value);
    if (part === undefined) continue;
    const cell = add(add(table, "tr"), "td");
    cell.colSpan = 2;
    add(add(cell, "div", undefined, "bar"), "i").style.width = Math.max(0, Math.min(100, 100 * part)) + "%";
  }
}

function ledger(box, title, side) {
  if (!side?.lines?.length) return;
  const of = side.limit ? " of " + bytes(side.limit) : "";
  rows(
    box,
    title + ": " + bytes(side.total) + of,
    side.lines
      .filter((l) => l.bytes)
      .map((l) => [l.what, bytes(l.bytes), l.bytes / (side.limit || side.total)]),
  );
}

function showNow(box, now) {
  rows(box, "Now", [
    ["running, waiting", `${now.running}, ${now.queued}`],
    ["while it computes", rate ? rate.toFixed(1) + " token/s" : "\u2013"],
    [
      planned ? `planned, ${planned.batch} at once, context ${planned.context}` : "planned",
      planned?.decode_tok_s ? planned.decode_tok_s.toFixed(1) + " token/s" : "\u2013",
    ],
    [
      "KV pages",
      `${now.kv_pages_used} of ${now.kv_pages_total}`,
      now.kv_pages_used / Math.max(1, now.kv_pages_total),
    ],
  ]);
  rows(
    box,
    "Workers",
    now.workers.map((w) => [w.name + (w.device ? ", " + w.device : ""), w.state]),
  );
}

function show(s) {
  const box = document.createElement("div"),
    now = s.status;
  $("model").textContent = s.model;
  document.title = s.model + " \u2013 HELM";
  say(
    now ? now.state : "helmd is not there",
    now?.state === "ready" ? "good" : "bad",
    now ? `context ${s.context.toLocaleString("en")}` : "",
  );
  if (now && last && now.tokens_output > last.tokens_output)
    rate = (now.tokens_output - last.tokens_output) / Math.max(1e-6, now.seconds_steps - last.seconds_steps);
  if (s.forecast) planned = s.forecast;
  if (now) showNow(box, now);
  rows(
    box,
    "Where a step's time goes",
    (s.resources || []).map((r) => [
      r.name + (r.bytes_per_second ? `, ${(r.bytes_per_second / 1e9).toFixed(1)} GB/s` : ""),
      percent(r.busy),
      r.busy,
    ]),
  );
  rows(
    box,
    "Decode, measured / planned",
    (s.decode || [])
      .filter((d) => d.seconds)
      .map((d) => [
        `${d.batch} at once, context ${d.context}`,
        (d.batch / d.seconds).toFixed(1) +
          (d.planned_seconds ? " / " + (d.batch / d.planned_seconds).toFixed(1) : ""),
      ]),
  );
  if (s.drift) add(box, "p", s.drift, "bad");
  if (s.plan) {
    const stages = s.plan.stages?.decode || s.plan.stages || [];
    rows(
      box,
      "Plan",
      (Array.isArray(stages) ? stages : []).map((t) => [
        `layers ${t.layers[0]}\u2013${t.layers[1]}${t.ops && t.ops !== "all" ? ", " + t.ops : ""}: ${t.home}`,
        bytes(t.bytes || 0),
      ]),
    );
    ledger(box, "Host memory", s.plan.host);
    ledger(box, "VRAM", s.plan.vram);
  }
  last = now || last;
  $("machine").replaceChildren(...box.childNodes);
}

function say(text, how, more = "") {
  $("state").className = how;
  $("state").textContent = text + (more ? ", " + more : "");
}

export async function look(headers) {
  try {
    const response = await fetch("status", { headers: headers() });
    if (response.status === 401) return say("an API key is needed (Settings)", "bad");
    show(await response.json());
  } catch {
    say("the gateway is not there", "bad");
  }
}

// The model's own sampling, as hints in the settings' empty fields.
export async function hint(headers, field) {
  try {
    const params = (await (await fetch("props", { headers: headers() })).json()).default_generation_settings
      .params;
    for (const name of ["temperature", "top_p", "top_k", "min_p"])
      if (typeof params[name] === "number") field(name).placeholder = String(+params[name].toFixed(4));
  } catch {
    /* the hints that the page has stay */
  }
}
