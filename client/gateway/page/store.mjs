// Conversations and settings in the browser's storage. Called by page.mjs; runs under node in tests.
//
// A conversation is one entry, so that two tabs do not write over each other's. The storage has bounds; nothing is
// deleted to make room. save() returns a message for the reader if something could not be kept.

export const CONVERSATIONS = 200;
export const CHARACTERS = 4000000; // all of them; browsers allow about five million
const TALK = "helm.talk.",
  SETTINGS = "helm.settings";
const TURN_TEXTS = ["content", "thinking", "error", "note"];

export const DEFAULTS = {
  temperature: "",
  top_p: "",
  top_k: "",
  min_p: "",
  max: "",
  seed: "",
  system: "",
  think: "",
  panel: "",
  side: "open",
};

function readTurn(t) {
  if (!t || (t.role !== "user" && t.role !== "assistant")) return null;
  const turn = { role: t.role, content: "" };
  for (const name of TURN_TEXTS) if (typeof t[name] === "string") turn[name] = t[name];
  for (const name of ["ended", "thought_ms"])
    if (["boolean", "number"].includes(typeof t[name])) turn[name] = t[name];
  return turn;
}

// A conversation of stored text, or null: what another program wrote there is not shown.
export function readConversation(text) {
  let c = null;
  try {
    c = JSON.parse(text);
  } catch {
    return null;
  }
  if (!c || typeof c.id !== "string" || typeof c.title !== "string" || !Array.isArray(c.turns)) return null;
  const turns = c.turns.map(readTurn);
  if (turns.includes(null)) return null;
  return { id: c.id, title: c.title, updated: Number(c.updated) || 0, turns };
}

export function titleOf(text) {
  const line = text.trim().split("\n", 1)[0].trim();
  return line.length > 60 ? line.slice(0, 59).trimEnd() + "\u2026" : line || "New conversation";
}

export class Store {
  // `open` gives the storage; it may throw, as in a browser that forbids it.
  constructor(open) {
    this.all = new Map(); // by id
    this.sizes = new Map();
    this.storage = null;
    try {
      this.storage = open();
      for (let i = 0; i < this.storage.length; i++) this.read(this.storage.key(i));
    } catch {
      this.storage = null;
    }
  }

  // An entry as it is now, here or after another tab changed it.
  read(key) {
    if (!key?.startsWith(TALK)) return null;
    const id = key.slice(TALK.length),
      text = this.storage.getItem(key);
    const c = text === null ? null : readConversation(text);
    this.sizes.set(id, text ? text.length : 0);
    if (!c || c.id !== id) {
      this.all.delete(id);
      return null;
    }
    this.all.set(id, c);
    return c;
  }

  list() {
    return [...this.all.values()].sort((a, b) => b.updated - a.updated);
  }

  create() {
    const bytes = crypto.getRandomValues(new Uint8Array(8));
    return {
      id: [...bytes].map((b) => b.toString(16).padStart(2, "0")).join(""),
      title: "",
      updated: Date.now(),
      turns: [],
    };
  }

  save(c) {
    this.all.set(c.id, c);
    if (!this.storage) return "This browser keeps nothing: conversations end with this tab.";
    const text = JSON.stringify({ id: c.id, title: c.title, updated: c.updated, turns: c.turns });
    let sum = text.length,
      count = 1;
    for (const [id, size] of this.sizes) {
      if (id === c.id || !size) continue;
      sum += size;
      count++;
    }
    if (count > CONVERSATIONS)
      return `This conversation is not kept: ${CONVERSATIONS} are the most. Delete some of them.`;
    if (sum > CHARACTERS)
      return (
        `This conversation is not kept: all together would have ${(sum / 1e6).toFixed(1)} million characters, ` +
        `${CHARACTERS / 1e6} million are the most. Delete some of them.`
      );
    try {
      this.storage.setItem(TALK + c.id, text);
    } catch {
      return "This conversation is not kept: the browser's storage is full. Delete some conversations.";
    }
    this.sizes.set(c.id, text.length);
    return "";
  }

  remove(id) {
    this.all.delete(id);
    this.sizes.delete(id);
    try {
      this.storage?.removeItem(TALK + id);
    } catch {
      /* then it was not kept either */
    }
  }

  settings() {
    const kept = { ...DEFAULTS };
    try {
      const found = JSON.parse(this.storage.getItem(SETTINGS));
      for (const name in DEFAULTS) if (typeof found[name] === "string") kept[name] = found[name];
    } catch {
      /* none are kept yet */
    }
    return kept;
  }

  saveSettings(settings) {
    try {
      this.storage.setItem(SETTINGS, JSON.stringify(settings));
      return "";
    } catch {
      return "The settings are not kept: the browser's storage is full or forbidden.";
    }
  }
}
