// A request to the gateway and the answer's stream. Called by page.mjs; runs under node in tests.

const NUMBERS = {
  temperature: "temperature",
  top_p: "top_p",
  top_k: "top_k",
  min_p: "min_p",
  max: "max_tokens",
  seed: "seed",
};

// The body of a request for the next turn. Turns without text are left out; neighbours of one role become one
// message, as templates want roles to alternate.
export function question(turns, settings) {
  const messages = [];
  const system = settings.system.trim();
  if (system) messages.push({ role: "system", content: system });
  for (const { role, content } of turns) {
    const last = messages.at(-1);
    if (!content) continue;
    if (last?.role === role) last.content += "\n\n" + content;
    else messages.push({ role, content });
  }
  const body = { messages, stream: true, stream_options: { include_usage: true } };
  for (const [setting, member] of Object.entries(NUMBERS))
    if (settings[setting].trim() !== "") body[member] = Number(settings[setting]);
  if (settings.think === "on") body.chat_template_kwargs = { enable_thinking: true };
  else if (settings.think) body.reasoning_effort = settings.think;
  return body;
}

// Server-sent events of a stream of bytes, as objects.
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let rest = ""; ;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue; // a comment, which keeps the line open
        const text = line.slice(5).trim();
        if (text === "[DONE]") continue; // the end of the body follows
        yield JSON.parse(text);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function refusalOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The gateway answered ${response.status} ${response.statusText}`;
  }
}

// Asks, and calls `take(delta)` for each piece. Returns { usage, reason }; throws what went wrong.
export async function ask(body, headers, signal, accepted, take) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers,
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw new Error(await refusalOf(response));
  accepted();
  let usage = null,
    reason = "";
  for await (const event of events(response.body)) {
    if (event.error) throw new Error(event.error.message);
    usage = event.usage ?? usage;
    const choice = event.choices?.[0];
    if (!choice) continue;
    reason = choice.finish_reason ?? reason;
    take(choice.delta);
  }
  if (!reason) throw new Error("The answer broke off: the gateway or its connection ended");
  return { usage, reason };
}

// Why a request waits, by the list at /slots. `known`: its id once it was seen, otherwise the newest one that has no
// output yet is taken for it. Returns { id, text, part }; part is missing while the share is not known.
export function progressOf(slots, known) {
  const waiting = slots.filter((s) => s.n_decoded === 0 && (known === null || s.id_task === known));
  if (!waiting.length) return null;
  const slot = waiting.reduce((a, b) => (b.id_task > a.id_task ? b : a));
  const id = slot.id_task,
    all = slot.n_prompt_tokens,
    read = Math.min(slot.n_prompt_tokens_processed, all);
  if (slot.state === "queued") {
    const others = slots.filter((s) => s.id_task !== id).length;
    return {
      id,
      text: others === 1 ? "Waiting for another request" : `Waiting for ${others} other requests`,
    };
  }
  const count = (n) => n.toLocaleString("en");
  return {
    id,
    text: `Reading the prompt: ${count(read)} of ${count(all)} tokens`,
    part: all ? read / all : 0,
  };
}
