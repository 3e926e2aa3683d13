// The page's modules that need no browser, under node: Markdown, the store, the request, the events. Run by test_gateway_page.py.
import { buildBlock } from "../../client/gateway/page/elements.mjs";
import { parse, safeLink } from "../../client/gateway/page/markdown.mjs";
import { Store, CONVERSATIONS, CHARACTERS, readConversation, titleOf, DEFAULTS } from "../../client/gateway/page/store.mjs";
import { events, progressOf, question } from "../../client/gateway/page/stream.mjs";
import { pieces } from "../../client/gateway/page/render.mjs";

function check(name, good, detail) {
  console.log(`${good ? "ok  " : "FAIL"} page: ${name}${good ? "" : "  [" + JSON.stringify(detail ?? "").slice(0, 1500) + "]"}`);
}
const same = (name, got, wanted) => check(name, JSON.stringify(got) === JSON.stringify(wanted), { got, wanted });

// ---- a document that knows elements and texts, and nothing that reads HTML --------------------------------

class Element {
  constructor(tag) { Object.assign(this, { tag, attributes: {}, children: [] }); }
  setAttribute(name, value) { this.attributes[name] = value; }
  set className(value) { this.attributes.class = value; }
  append(...nodes) { for (const n of nodes) this.children.push(n); }
}
const standIn = new Proxy({ createElement: (tag) => new Element(tag), createTextNode: (text) => ({ text }) },
  { get(target, name) { if (!(name in target)) throw new Error("the document was asked for " + String(name)); return target[name]; } });
for (const name of ["innerHTML", "outerHTML"]) Object.defineProperty(Element.prototype, name, { set() { throw new Error(name); } });

function* all(node) {
  yield node;
  for (const child of node.children ?? []) yield* all(child);
}
function render(text) {
  const root = new Element("root");
  for (const block of parse(text)) root.append(buildBlock(standIn, block));
  return root;
}
// As HTML would show it, without the parts around code and tables.
function write(node) {
  if (node.text !== undefined) return node.text;
  const { tag, attributes: a, children } = node, inside = children.map(write).join("");
  if (tag === "root") return inside;
  if (a.class === "code") return `<pre ${write(children[0].children[0].children[0])}>${write(children[1].children[0].children[0])}</pre>`;
  if (a.class === "table") return inside;
  const shown = ["href", "start", "checked"].filter((n) => n in a).map((n) => ` ${n}=${a[n]}`).join("") + (tag.startsWith("t") && a.class ? " " + a.class : "");
  return children.length ? `<${tag}${shown}>${inside}</${tag}>` : `<${tag}${shown}>`;
}

// ---- Markdown -------------------------------------------------------------------------------------------

const MARKDOWN = [
  ["a **b** *c* ***d*** ~~e~~ `f`", "<p>a <strong>b</strong> <em>c</em> <em><strong>d</strong></em> <del>e</del> <code>f</code></p>"],
  ["__b__ _i_ snake_case_name 2 * 3 * 4", "<p><strong>b</strong> <em>i</em> snake_case_name 2 * 3 * 4</p>"],
  ["\u8fd9\u662f**\u91cd\u70b9\uff1a**\u540e **not bold ** 2 ** 3", "<p>\u8fd9\u662f<strong>\u91cd\u70b9\uff1a</strong>\u540e **not bold ** 2 ** 3</p>"],
  ["**a *b* c** *d **e** f*", "<p><strong>a <em>b</em> c</strong> <em>d <strong>e</strong> f</em></p>"],
  ["`` a`b `` and `**not**` and `open", "<p><code>a`b</code> and <code>**not**</code> and `open</p>"],
  ["\\*plain\\* \\<b>", "<p>*plain* <b></p>"],
  ["one\ntwo<br>three", "<p>one<br>two<br>three</p>"],
  ["&lt;b&gt; &amp;amp; &copy;", "<p><b> &amp; &copy;</p>"],
  ["# One\n## Two ##\n###### Six\nTitle\n===\nUnder\n---", "<h3>One</h3><h4>Two</h4><h6>Six</h6><h3>Title</h3><h4>Under</h4>"],
  ["#hashtag", "<p>#hashtag</p>"],
  ["- a\n- b\n  - c\n\n    d", "<ul><li>a</li><li>b<ul><li><p>c</p><p>d</p></li></ul></li></ul>"],
  ["3. a\n4. b", "<ol start=3><li>a</li><li>b</li></ol>"],
  ["1. **a**\n  - nested by two\n2. b", "<ol><li><strong>a</strong><ul><li>nested by two</li></ul></li><li>b</li></ol>"],
  ["- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"],
  ["- [x] done\n- [ ] to do", "<ul><li><input checked=>done</li><li><input>to do</li></ul>"],
  ["1. a\n   ```sh\n   ls\n\n   pwd\n   ```\n2. b", "<ol><li>a<pre sh>ls\n\npwd</pre></li><li>b</li></ol>"],
  ["> a\n> > b\nlazy\n\nafter", "<blockquote><p>a</p><blockquote><p>b<br>lazy</p></blockquote></blockquote><p>after</p>"],
  ["> a\n> > b\n\nafter", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>after</p>"],
  ["a\n\n---\n\n* * *\nb", "<p>a</p><hr><hr><p>b</p>"],
  ["```py\nprint('<b>')\n\n# x\n```\nafter", "<pre py>print('<b>')\n\n# x</pre><p>after</p>"],
  ["~~~\n```\n~~~", "<pre text>```</pre>"],
  ["````md\n```\ninside\n```\n````", "<pre md>```\ninside\n```</pre>"],
  ["```js\nnever closed **x**\n", "<pre js>never closed **x**</pre>"],
  ["    four\n      six\n\nafter", "<pre text>four\n  six</pre><p>after</p>"],
  ["| a | b |\n|:-:|--:|\n| 1 | `x\\|y` |\n| **2** |\n\nafter",
    "<table><thead><tr><th center>a</th><th right>b</th></tr></thead><tbody><tr><td center>1</td><td right><code>x|y</code></td></tr><tr><td center><strong>2</strong></td></tr></tbody></table><p>after</p>"],
  ["a | b\n--|--\nc | d", "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>c</td><td>d</td></tr></tbody></table>"],
  ["a | b\nno table", "<p>a | b<br>no table</p>"],
  ["[l](https://a.b/c_(d) \"t\") <https://e.f> (https://g.h/i).", "<p><a href=https://a.b/c_(d)>l</a> <a href=https://e.f/>https://e.f</a> (<a href=https://g.h/i>https://g.h/i</a>).</p>"],
  ["**https://a.b/c** mailto:x@y.z [**b**](http://c.d)", "<p><strong><a href=https://a.b/c>https://a.b/c</a></strong> <a href=mailto:x@y.z>mailto:x@y.z</a> <a href=http://c.d/><strong>b</strong></a></p>"],
  ["![alt](https://i.j/k.png) [![m](https://n/o)](https://p/q)", "<p><a href=https://i.j/k.png>alt</a> <a href=https://p/q>m</a></p>"],
  ["a\r\nb\r\n\r\n- c\r\n", "<p>a<br>b</p><ul><li>c</li></ul>"],
  ["\t- a\n\t- b\n", "<ul><li>a</li><li>b</li></ul>"],
  ["", ""],
];
for (const [text, wanted] of MARKDOWN) {
  const got = write(render(text));
  check(`Markdown of ${JSON.stringify(text).slice(0, 60)}`, got === wanted, { got, wanted });
}

// ---- hostile Markdown -----------------------------------------------------------------------------------

const TAGS = new Set("p h3 h4 h5 h6 strong em del code a br ul ol li input blockquote hr div span button pre table thead tbody tr th td".split(" "));
const ATTRIBUTES = new Set("class href rel target title type tabindex aria-label start disabled checked".split(" "));
function trouble(root) {
  for (const node of all(root)) {
    if (node.text !== undefined || node === root) continue;
    if (!TAGS.has(node.tag)) return node.tag;
    for (const name in node.attributes) if (!ATTRIBUTES.has(name)) return name;
    if (node.tag !== "a") continue;
    const { href, rel } = node.attributes;
    if (!/^(https?:\/\/|mailto:)/.test(href) || !rel.includes("noopener")) return href;
  }
  return "";
}
const HOSTILE = ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg/onload=alert(1)>", "<iframe src=//e.f></iframe>", "<style>*{}</style>",
  "[a](javascript:alert(1))", "[a](JaVaScRiPt:alert(1))", "[a](java\tscript:alert(1))", "[a](&#106;avascript:alert(1))", "[a](data:text/html,x)", "[a](vbscript:x)",
  "[a](//evil.example)", "[a](/v1/models)", "[a](file:///etc/passwd)", "[a](blob:https://x/y)", "<javascript:alert(1)>", "[a](https://x/\"onmouseover=alert(1))",
  "![a](javascript:alert(1))", "![a](x\" onerror=\"alert(1))", "`<script>`", "```<script>alert(1)</script>\n<b>\n```", "| <script> | b |\n|--|--|\n| <img onerror=x> | c |",
  "# <b>x</b>", "- <b>x</b>", "> <b>x</b>", "&lt;script&gt;alert(1)&lt;/script&gt;", "[<script>](https://a.b)", "<a href=\"javascript:x\">y</a>", "<https://a.b/\"onclick=x>",
  "[a](https://a.b\u0000)", "[a](ht\u00adtps://a.b)", "[a]( javascript:x )", "[a](<javascript:x>)", "[![x](javascript:y)](javascript:z)", "__proto__ **constructor** `toString`"];
for (const text of HOSTILE) check(`hostile: ${JSON.stringify(text)}`, trouble(render(text)) === "", trouble(render(text)));
check("HTML is shown as it was written", write(render("<script>alert(1)</script> <b onclick=x>y</b>")) === "<p><script>alert(1)</script> <b onclick=x>y</b></p>");
check("a link to elsewhere stays text", write(render("[a](javascript:alert(1))")) === "<p>[a](javascript:alert(1))</p>", write(render("[a](javascript:alert(1))")));
for (const url of ["javascript:x", " https://a", "https://a b", "https:", "HTTPS://", "ftp://a", "data:,", "", "https://" + "a".repeat(3000)]) check(`no link: ${url.slice(0, 30)}`, safeLink(url) === "");
for (const url of ["https://a.b", "HTTP://A.B/c?d#e", "mailto:a@b.c"]) check(`a link: ${url}`, safeLink(url) !== "");

const N = 100000, up = (n, f) => Array.from({ length: n }, (_, i) => f(i)).join("");
const LONG = { stars: "*".repeat(N), openers: "*a ".repeat(N / 3), closers: "a* ".repeat(N / 3), "two marks": "*a _b ".repeat(N / 6), underlines: "_".repeat(N / 2) + "a" + "_".repeat(N / 2),
  emphasis: "*a*".repeat(N / 3), "emphasis in emphasis": "*a ".repeat(N / 6) + "a* ".repeat(N / 6), tildes: "~~a".repeat(N / 3), brackets: "[".repeat(N), pairs: "[a]".repeat(N / 3), closed: "[](".repeat(N / 3),
  images: "![".repeat(N / 2), "brackets and marks": "*[".repeat(N / 2), titles: '[a](b "'.repeat(N / 7), parentheses: "[a](b(".repeat(N / 6), links: "[a](https://b.c/) ".repeat(N / 18),
  "rising backquotes": up(600, (i) => "`".repeat(i) + "x"), backquotes: "`".repeat(N), "unequal backquotes": "`x ``y".repeat(N / 6), escapes: "\\".repeat(N), angles: "<".repeat(N), ampersands: "&".repeat(N),
  addresses: "http://a.b ".repeat(N / 11), schemes: "http://".repeat(N / 7), quotes: ">".repeat(N), "lines of quotes": "> a\n".repeat(N / 4), items: "- a\n".repeat(N / 4), "items and blanks": "- a\n\n".repeat(N / 5),
  "lazy items": "- a\nb\n".repeat(N / 6), "nested items": up(600, (i) => " ".repeat(i) + "- a\n"), "item in item": "- ".repeat(N / 2) + "x", spaces: "a" + " ".repeat(N) + "b", "spaces in a heading": "# " + " ".repeat(N) + "x",
  "lines of spaces": (" ".repeat(999) + "\n").repeat(N / 1000), pipes: "|".repeat(N), rows: "|a|b|\n|-|-|\n" + "|x|y|\n".repeat(N / 6), columns: "|a".repeat(N / 4) + "\n" + "|-".repeat(N / 4), fences: "```\n".repeat(N / 4),
  "an open fence": "```js\n" + "x = 1;\n".repeat(N / 7), lines: "a\n".repeat(N / 2) + "=", dashes: "-".repeat(N), tabs: "\t".repeat(N) + "x", words: "lorem ipsum ".repeat(N / 12) };
for (const [name, text] of Object.entries(LONG)) {
  const begin = process.cpuUsage(), root = render(text), spent = process.cpuUsage(begin).user / 1e6;
  check(`100 kB of ${name}: ${spent.toFixed(2)} s`, spent < 3 && trouble(root) === "", { spent, trouble: trouble(root) });
}
same("a long text comes in pieces without a loss", pieces("x\n".repeat(50000) + "y".repeat(200000)).join("").length, 300000);

// ---- the store ------------------------------------------------------------------------------------------

class Storage {
  constructor(limit = Infinity) { this.map = new Map(); this.limit = limit; }
  get length() { return this.map.size; }
  key(i) { return [...this.map.keys()][i]; }
  getItem(key) { return this.map.get(key) ?? null; }
  removeItem(key) { this.map.delete(key); }
  setItem(key, value) {
    if ([...this.map].reduce((sum, [k, v]) => sum + (k === key ? 0 : v.length), value.length) > this.limit) throw new DOMException("full", "QuotaExceededError");
    this.map.set(key, value);
  }
}
const talk = (store, text) => Object.assign(store.create(), { title: titleOf(text), turns: [{ role: "user", content: text }, { role: "assistant", content: "y", ended: true }] });
{
  const storage = new Storage(), store = new Store(() => storage), a = talk(store, "first"), b = talk(store, "second");
  a.updated = 1;
  check("a conversation is kept", store.save(a) === "" && store.save(b) === "");
  const again = new Store(() => storage);
  same("... over a reload, the newest first", again.list().map((c) => c.title), ["second", "first"]);
  same("... with its turns", again.list()[1].turns, a.turns);
  storage.setItem("helm.talk.x", "no JSON");
  storage.setItem("helm.talk.y", JSON.stringify({ id: "y", title: "t", turns: [{ role: "system", content: "z" }] }));
  storage.setItem("helm.talk.z", JSON.stringify({ id: "other", title: "t", turns: [] }));
  storage.setItem("someone.else", "1");
  check("what is no conversation is not shown", new Store(() => storage).list().length === 2 && storage.length === 6);
  same("what a turn should not have is left out", readConversation(JSON.stringify({ id: "a", title: "t", turns: [{ role: "user", content: 5, note: {}, onclick: "x" }] })).turns, [{ role: "user", content: "" }]);
  again.remove(a.id);
  check("a conversation is deleted", new Store(() => storage).list().length === 1);
  check("another tab's change is read", (again.save(Object.assign(a, { title: "new" })), store.read("helm.talk." + a.id).title === "new"));
  same("settings are kept", (store.saveSettings({ ...DEFAULTS, seed: "5" }), new Store(() => storage).settings().seed), "5");
  storage.setItem("helm.settings", '{"seed": 5, "temperature": "0.5", "evil": "x"}');
  same("... and others' are not taken", new Store(() => storage).settings(), { ...DEFAULTS, temperature: "0.5" });
}
{
  const full = new Store(() => new Storage(300)), a = talk(full, "x".repeat(500));
  check("a full storage is a message", full.save(a).includes("storage is full") && full.list().length === 1, full.save(a));
  const none = new Store(() => { throw new Error("forbidden"); });
  check("a browser without storage is a message", none.save(talk(none, "x")).includes("keeps nothing") && none.settings().seed === "" && none.saveSettings({}) !== "" && none.list().length === 1);
  const many = new Store(() => new Storage());
  let said = "";
  for (let i = 0; i < CONVERSATIONS && !said; i++) said = many.save(talk(many, "a" + i));
  const last = talk(many, "one more");
  check("conversations have a most", said === "" && many.save(last).includes(String(CONVERSATIONS)) && many.storage.length === CONVERSATIONS, said);
  many.remove(many.list().at(-1).id);
  check("... and deleting makes room", many.save(last) === "");
  const large = new Store(() => new Storage());
  check("characters have a most", large.save(talk(large, "x".repeat(CHARACTERS - 1000))) === "" && large.save(talk(large, "y".repeat(2000))).includes("million") && large.storage.length === 1);
  same("titles", [titleOf("  a\nb"), titleOf("x".repeat(100)).length, titleOf(" ")], ["a", 60, "New conversation"]);
}

// ---- requests and streams -------------------------------------------------------------------------------

const turns = [["user", "a"], ["assistant", ""], ["user", "b"], ["assistant", "c"], ["user", "d"]].map(([role, content]) => ({ role, content, thinking: "x", note: "y" }));
same("a question", question(turns, DEFAULTS), { messages: [{ role: "user", content: "a\n\nb" }, { role: "assistant", content: "c" }, { role: "user", content: "d" }], stream: true, stream_options: { include_usage: true } });
same("a question with every setting", question(turns.slice(0, 1), { ...DEFAULTS, temperature: "0", top_p: "0.9", top_k: "40", min_p: "0.05", max: "100", seed: "7", system: " s ", think: "high" }),
  { messages: [{ role: "system", content: "s" }, { role: "user", content: "a" }], stream: true, stream_options: { include_usage: true }, temperature: 0, top_p: 0.9, top_k: 40, min_p: 0.05, max_tokens: 100, seed: 7, reasoning_effort: "high" });
same("thinking off and on", ["none", "on"].map((think) => { const q = question([], { ...DEFAULTS, think }); return [q.reasoning_effort, q.chat_template_kwargs]; }), [["none", undefined], [undefined, { enable_thinking: true }]]);
const stream = (text, size) => new ReadableStream({ start(c) { const b = new TextEncoder().encode(text); for (let i = 0; i < b.length; i += size) c.enqueue(b.slice(i, i + size)); c.close(); } });
for (const size of [1, 3, 1000]) {
  const got = [];
  for await (const e of events(stream(': ping\n\ndata: {"a":"\u00e9\u{1f600}"}\n\n: ping\ndata: {"a":2}\r\n\r\ndata: [DONE]\n\n', size))) got.push(e.a);
  same(`events in pieces of ${size}`, got, ["\u00e9\u{1f600}", 2]);
}
const slot = (id_task, state, n_prompt_tokens, n_prompt_tokens_processed, n_decoded = 0) => ({ id_task, state, n_prompt_tokens, n_prompt_tokens_processed, n_decoded });
same("progress of a prompt", progressOf([slot(1, "decode", 9, 9, 4), slot(2, "prefill", 2000, 500)], null), { id: 2, text: "Reading the prompt: 500 of 2,000 tokens", part: 0.25 });
same("... of this one, though a newer one came", progressOf([slot(2, "prefill", 8, 4), slot(3, "prefill", 10, 1)], 2).part, 0.5);
same("waiting", progressOf([slot(1, "decode", 9, 9, 4), slot(2, "queued", 5, 0)], null).text, "Waiting for another request");
same("nothing to wait for", progressOf([slot(1, "decode", 9, 9, 4)], null), null);
