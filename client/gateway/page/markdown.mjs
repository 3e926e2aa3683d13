// Markdown of a model as plain objects. Called by render.mjs; elements.mjs makes elements of these objects.
// tests/process/gateway_page_pure.mjs runs both under node.
//
// A step takes time in proportion to the text, whatever the text is: no pattern backtracks over more than a bounded
// stretch, and depth and number of nodes have limits.

const DEPTH = 12; // of lists, quotes and emphasis inside each other
const NODES = 4000; // elements inside one block: what follows them is plain text
const COLUMNS = 64;
const URL_MAX = 2000;

// ---- links ----------------------------------------------------------------------------------------------

// The address if a link may lead there, otherwise "". Nothing but http, https and mailto.
export function safeLink(text) {
  if (text.length > URL_MAX || !/^(?:https?:\/\/|mailto:)[^\s\u0000-\u001f\u007f]+$/i.test(text)) return "";
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : "";
  } catch {
    return "";
  }
}

// ---- inline ---------------------------------------------------------------------------------------------

const SPECIAL = /[\\`*_~[\]!<\n&]|https?:\/\/|mailto:/gi;
const TARGET =
  /\(\s{0,99}(?:<([^<>\n]{0,2000})>|([^\s()<>]{0,2000}(?:\([^\s()<>]{0,200}\)[^\s()<>]{0,200}){0,8}))(?:\s{1,99}(?:"[^"]{0,500}"|'[^']{0,500}'))?\s{0,99}\)/y;
const ANGLE = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/iy;
const BARE = /(?:https?:\/\/|mailto:)[^\s<>"'`\\^{|}]{1,2000}/iy;
const BREAK = /<br\s{0,9}\/?>/iy;
const ENTITY = /&(amp|lt|gt|quot|nbsp|#39);/y;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', nbsp: "\u00a0", "#39": "'" };
const at = (pattern, text, i) => {
  pattern.lastIndex = i;
  return pattern.exec(text);
};
const isSpace = (c) => c === "" || /\s/.test(c);
const isMark = (c) => c !== "" && /[\p{P}\p{S}]/u.test(c);
const depthOf = (nodes) => nodes.reduce((most, n) => Math.max(most, n.depth ?? 0), 0);

// The text of inline nodes without their marks.
export function plain(nodes) {
  return nodes
    .map((n) => (typeof n === "string" ? n : n.type === "br" ? " " : (n.text ?? plain(n.nodes))))
    .join("");
}

// The end of a bare address: without the punctuation of the sentence around it.
function bareEnd(url) {
  let end = url.length,
    open = 0;
  for (const c of url) open += c === "(" ? 1 : c === ")" ? -1 : 0;
  for (; end > 0; end--) {
    const c = url[end - 1];
    if (c === ")" && open < 0) open++;
    else if (!".,;:!?*_~]".includes(c)) break;
  }
  return end;
}

// A run of * or _ or ~, as CommonMark lets it open and close.
function runOf(text, i, length) {
  const c = text[i],
    before = text.slice(Math.max(0, i - 1), i),
    after = text.slice(i + length, i + length + 1);
  const left = !isSpace(after) && (!isMark(after) || isSpace(before) || isMark(before));
  const right = !isSpace(before) && (!isMark(before) || isSpace(after) || isMark(after));
  const run = { mark: c, count: length, length, open: left, close: right };
  if (c === "_") {
    run.open = left && (!right || isMark(before));
    run.close = right && (!left || isMark(after));
  }
  if (c === "*" && length === 2) {
    // bold beside punctuation, as Chinese and Japanese have it without blanks
    run.open = !isSpace(after);
    run.close = !isSpace(before);
  }
  if (c === "~" && length !== 2) run.open = run.close = false;
  return run;
}

class Inline {
  constructor(text) {
    this.text = text;
    this.out = []; // texts, nodes, and runs and brackets that may yet become nodes
    this.runs = []; // places in `out` of runs that may open
    this.brackets = []; // places in `out` of [ and ![
    this.bottom = {}; // below it no run opens for a closer of this kind
    this.made = 0;
  }

  push(item) {
    this.out.push(item);
  }

  // Backquotes: places of runs by length, each list read once from its front.
  closing(length, from) {
    if (!this.ticks) {
      this.ticks = new Map();
      for (const m of this.text.matchAll(/`+/g)) {
        if (!this.ticks.has(m[0].length)) this.ticks.set(m[0].length, { places: [], next: 0 });
        this.ticks.get(m[0].length).places.push(m.index);
      }
    }
    const list = this.ticks.get(length);
    while (list.next < list.places.length && list.places[list.next] < from) list.next++;
    return list.next < list.places.length ? list.places[list.next] : -1;
  }

  // Everything after `place` becomes the inside of a node.
  wrap(place, node) {
    const nodes = this.settle(this.out.splice(place + 1));
    const depth = 1 + depthOf(nodes);
    if (depth > DEPTH || ++this.made > NODES) {
      for (const n of nodes) this.push(n);
      return false;
    }
    this.push({ ...node, nodes, depth });
    return true;
  }

  // Runs and brackets that became nothing are text.
  settle(items) {
    const nodes = [];
    for (const item of items) {
      const n = item.mark ? item.mark.repeat(item.count) : (item.bracket ?? item);
      if (n === "") continue;
      if (typeof n === "string" && typeof nodes.at(-1) === "string") nodes[nodes.length - 1] += n;
      else nodes.push(n);
    }
    return nodes;
  }

  drop(place) {
    // runs and brackets from here on are inside a node now
    while (this.runs.length && this.runs.at(-1) >= place) this.runs.pop();
    while (this.brackets.length && this.brackets.at(-1) >= place) this.brackets.pop();
    for (const k in this.bottom) this.bottom[k] = Math.min(this.bottom[k], this.runs.length);
  }

  close(run) {
    const kind = run.mark + run.open + (run.length % 3);
    while (run.count) {
      let k = this.runs.length - 1,
        opener;
      for (const low = this.bottom[kind] ?? 0; k >= low; k--) {
        opener = this.out[this.runs[k]];
        const odd =
          (opener.close || run.open) && (opener.length + run.length) % 3 === 0 && run.length % 3 !== 0;
        if (opener.mark === run.mark && !odd) break;
        opener = null;
      }
      if (!opener) {
        this.bottom[kind] = this.runs.length;
        return;
      }
      const place = this.runs[k],
        used = opener.count > 1 && run.count > 1 ? 2 : 1;
      this.drop(place + 1);
      const type = run.mark === "~" ? "s" : used === 2 ? "b" : "i";
      if (!this.wrap(place, { type })) return;
      opener.count -= used;
      run.count -= used;
      if (!opener.count) {
        this.drop(place);
        this.out.splice(place, 1); // the node moves to its place
      }
    }
  }

  link(i) {
    const place = this.brackets.pop();
    const target = at(TARGET, this.text, i + 1);
    if (place === undefined || !target) return 0;
    const href = safeLink((target[1] ?? target[2] ?? "").trim());
    if (!href) return 0; // stays as it is written: a reader sees where it would have led
    const image = this.out[place].bracket === "![";
    this.drop(place);
    if (!this.wrap(place, { type: "a", href, image })) return 0;
    const node = this.out.at(-1);
    node.nodes = node.nodes.map((n) => (n.type === "a" ? plain([n]) : n)); // no link inside a link
    if (!node.nodes.length) node.nodes = [image ? "image" : href];
    this.out.splice(place, 1);
    if (!image) this.brackets = this.brackets.filter((b) => this.out[b].bracket === "![");
    return target[0].length;
  }

  // How many characters at i are more than text; 0: the one is text.
  step(i) {
    const { text } = this,
      c = text[i];
    let m;
    if (c === "\\") {
      const next = text[i + 1] ?? "";
      if (next === "\n") this.push({ type: "br" });
      else if (/[!-/:-@[-`{-~]/.test(next)) this.push(next);
      else return 0;
      return 2;
    }
    if (c === "`") {
      let length = 1;
      while (text[i + length] === "`") length++;
      const end = this.closing(length, i + length);
      if (end < 0 || ++this.made > NODES) {
        this.push("`".repeat(length));
        return length;
      }
      let code = text.slice(i + length, end).replaceAll("\n", " ");
      if (code.length > 2 && code[0] === " " && code.at(-1) === " " && code.trim()) code = code.slice(1, -1);
      this.push({ type: "code", text: code });
      return end + length - i;
    }
    if (c === "*" || c === "_" || c === "~") {
      let length = 1;
      while (text[i + length] === c) length++;
      const run = runOf(text, i, length);
      if (run.close) this.close(run);
      if (run.count) {
        this.push(run);
        if (run.open) this.runs.push(this.out.length - 1);
      }
      return length;
    }
    if (c === "[" || (c === "!" && text[i + 1] === "[")) {
      const bracket = c === "[" ? "[" : "![";
      this.push({ bracket });
      this.brackets.push(this.out.length - 1);
      return bracket.length;
    }
    if (c === "]") {
      const length = this.link(i);
      return length ? 1 + length : 0;
    }
    if (c === "\n") {
      const last = this.out.length - 1;
      if (typeof this.out[last] === "string") this.out[last] = this.out[last].trimEnd();
      this.push({ type: "br" });
      return 1;
    }
    if (c === "&") {
      m = at(ENTITY, text, i);
      if (m) this.push(ENTITIES[m[1]]);
      return m ? m[0].length : 0;
    }
    if (c === "<") {
      m = at(BREAK, text, i);
      if (m) this.push({ type: "br" });
      const angle = m ? null : at(ANGLE, text, i),
        href = angle ? safeLink(angle[1]) : "";
      if (href) this.push({ type: "a", href, nodes: [angle[1]], depth: 1 });
      return m ? m[0].length : href ? angle[0].length : 0;
    }
    if (/[hm]/i.test(c) && !/\w/.test(text[i - 1] ?? "") && this.made < NODES) {
      m = at(BARE, text, i);
      const shown = m ? m[0].slice(0, bareEnd(m[0])) : "",
        href = safeLink(shown);
      if (shown) this.push(href ? { type: "a", href, nodes: [shown], depth: 1 } : shown);
      this.made += href ? 1 : 0;
      return shown.length;
    }
    return 0;
  }

  parse() {
    const { text } = this;
    for (let i = 0; i < text.length;) {
      const m = this.made <= NODES ? at(SPECIAL, text, i) : null;
      const next = m ? m.index : text.length;
      if (next > i) this.push(text.slice(i, next));
      if (!m) break;
      const taken = this.step(next);
      if (!taken) this.push(m[0][0]);
      i = next + (taken || 1);
    }
    return this.settle(this.out);
  }
}

export function parseInline(text) {
  return new Inline(text.trim()).parse();
}

// ---- blocks ---------------------------------------------------------------------------------------------

const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t](.*))?$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const QUOTE = /^ {0,3}> ?/;
const ROW = /^ {0,3}[|:-][ \t|:-]*$/;
const indentOf = (line) => {
  let n = 0;
  while (line[n] === " ") n++;
  return n;
};
const isBlank = (line) => line.trim() === "";

function isRule(line) {
  if (line.length > 400 || !/^ {0,3}[-*_]/.test(line)) return false;
  const marks = line.replace(/[ \t]/g, "");
  return marks.length > 2 && /^(?:-+|\*+|_+)$/.test(marks);
}
function fenceOf(line) {
  const m = FENCE.exec(line);
  return m && !(m[1][0] === "`" && m[2].includes("`")) ? m : null;
}
// A paragraph ends before such a line.
const starts = (line) => isRule(line) || fenceOf(line) || HEADING.test(line) || QUOTE.test(line);
function itemOf(line) {
  const m = ITEM.exec(line);
  if (!m || isRule(line)) return null;
  const empty = m[0].length === line.length;
  const width = m[1].length + m[2].length + (empty || m[3].length > 4 ? 1 : m[3].length);
  return {
    indent: m[1].length,
    kind: m[2].at(-1),
    ordered: m[2].length > 1,
    start: parseInt(m[2], 10),
    width,
  };
}

function cellsOf(line) {
  let row = line.trim();
  if (row.startsWith("|")) row = row.slice(1);
  if (row.endsWith("|") && !row.endsWith("\\|")) row = row.slice(0, -1);
  const cells = [];
  let cell = "";
  for (let i = 0; i < row.length; i++) {
    if (row[i] === "\\" && row[i + 1] === "|") cell += row[++i];
    else if (row[i] === "|") {
      cells.push(cell);
      cell = "";
    } else cell += row[i];
    if (cells.length === COLUMNS) return cells;
  }
  cells.push(cell);
  return cells;
}

class Blocks {
  constructor(lines, depth) {
    this.lines = lines;
    this.depth = depth;
    this.i = 0;
    this.blocks = [];
  }

  inside(lines) {
    return new Blocks(lines, this.depth + 1).parse();
  }

  code(fence) {
    const indent = indentOf(this.lines[this.i]),
      mark = fence[1],
      text = [];
    let open = true;
    for (this.i++; this.i < this.lines.length && open; this.i++) {
      const line = this.lines[this.i],
        end = line.trim();
      if (
        indentOf(line) < 4 &&
        end.length >= mark.length &&
        end[0] === mark[0] &&
        end === mark[0].repeat(end.length)
      )
        open = false;
      else text.push(line.slice(Math.min(indent, indentOf(line))));
    }
    if (open && text.at(-1) === "") text.pop(); // the next line has not begun
    return {
      type: "code",
      lang: fence[2].trim().split(/\s/, 1)[0].slice(0, 40),
      text: text.join("\n"),
      open,
    };
  }

  indented() {
    const text = [];
    for (; this.i < this.lines.length; this.i++) {
      const line = this.lines[this.i];
      if (!isBlank(line) && indentOf(line) < 4) break;
      text.push(line.slice(4));
    }
    while (text.length && isBlank(text.at(-1))) text.pop();
    return { type: "code", lang: "", text: text.join("\n"), open: false };
  }

  quote() {
    const inside = [];
    for (; this.i < this.lines.length; this.i++) {
      const line = this.lines[this.i],
        m = QUOTE.exec(line);
      if (m) inside.push(line.slice(m[0].length));
      else if (isBlank(line) || isBlank(inside.at(-1)) || starts(line) || itemOf(line)) break;
      else inside.push(line);
    }
    return { type: "quote", blocks: this.inside(inside) };
  }

  // An item of its lines, as they are inside it. A list is loose when a blank line is between its items or an item's blocks.
  item(list, item) {
    const inside = [this.lines[this.i].slice(item.width)];
    let blank = false,
      fence = fenceOf(inside[0]);
    for (this.i++; this.i < this.lines.length; this.i++) {
      const line = this.lines[this.i],
        indent = indentOf(line);
      if (isBlank(line)) {
        inside.push("");
        blank = true;
        continue;
      }
      const other = itemOf(line),
        nested = other && indent >= item.indent + 2;
      if (indent < item.width && !nested && (other || (blank && !fence) || starts(line))) break;
      const rest = line.slice(Math.min(indent, item.width));
      if (fenceOf(rest)) fence = !fence;
      inside.push(rest);
      blank = false;
    }
    let blanks = 0;
    for (; inside.length > 1 && inside.at(-1) === ""; blanks++) inside.pop();
    if (blanks && this.i < this.lines.length && itemOf(this.lines[this.i])?.indent === item.indent)
      list.tight = false;
    const task = /^\[([ xX])\] /.exec(inside[0]);
    if (task) inside[0] = inside[0].slice(4);
    const blocks = this.inside(inside);
    if (blocks.some((b, k) => k && inside[b.line - 1] === "")) list.tight = false;
    return { task: task ? task[1] !== " " : null, blocks };
  }

  list(first) {
    const list = {
      type: "list",
      ordered: first.ordered,
      start: first.ordered ? first.start : 1,
      tight: true,
      items: [],
    };
    for (let item = first; item && item.kind === first.kind && item.indent < first.width;) {
      list.items.push(this.item(list, item));
      item = this.i < this.lines.length ? itemOf(this.lines[this.i]) : null;
    }
    return list;
  }

  table() {
    const [head, marks] = [this.lines[this.i], this.lines[this.i + 1] ?? ""];
    if (!head.includes("|") || !marks.includes("-") || !ROW.test(marks)) return null;
    const names = cellsOf(head),
      sides = cellsOf(marks).map((c) => c.trim());
    if (names.length !== sides.length || !sides.every((s) => /^:?-+:?$/.test(s))) return null;
    const align = sides.map((s) => (s.endsWith(":") ? (s[0] === ":" ? "center" : "right") : ""));
    const rows = [];
    for (this.i += 2; this.i < this.lines.length; this.i++) {
      const line = this.lines[this.i];
      if (isBlank(line) || starts(line) || !line.includes("|")) break;
      rows.push(cellsOf(line).slice(0, names.length).map(parseInline));
    }
    return { type: "table", align, head: names.map(parseInline), rows };
  }

  paragraph() {
    const text = [];
    for (; this.i < this.lines.length; this.i++) {
      const line = this.lines[this.i];
      if (text.length) {
        const under = /^ {0,3}(=+|-+)[ \t]*$/.exec(line.trimEnd());
        if (under) {
          this.i++;
          return { type: "heading", level: under[1][0] === "=" ? 1 : 2, nodes: parseInline(text.join("\n")) };
        }
        const item = itemOf(line);
        if (
          isBlank(line) ||
          starts(line) ||
          (item && (!item.ordered || item.start === 1) && item.width < line.length)
        )
          break;
      }
      text.push(line);
    }
    return { type: "p", nodes: parseInline(text.join("\n")) };
  }

  next() {
    const line = this.lines[this.i];
    const deep = this.depth >= DEPTH;
    const fence = fenceOf(line);
    if (fence) return this.code(fence);
    if (indentOf(line) > 3 && !itemOf(line)) return this.indented();
    const heading = HEADING.exec(line);
    if (heading) {
      this.i++;
      let text = (heading[2] ?? "").trim(),
        end = text.length;
      while (text[end - 1] === "#") end--;
      if (end < text.length && (end === 0 || text[end - 1] === " ")) text = text.slice(0, end);
      return { type: "heading", level: heading[1].length, nodes: parseInline(text) };
    }
    if (isRule(line)) {
      this.i++;
      return { type: "rule" };
    }
    if (!deep && QUOTE.test(line)) return this.quote();
    const item = deep ? null : itemOf(line);
    if (item) return this.list(item);
    return this.table() ?? this.paragraph();
  }

  parse() {
    while (this.i < this.lines.length) {
      if (isBlank(this.lines[this.i])) {
        this.i++;
        continue;
      }
      const line = this.i;
      this.blocks.push({ ...this.next(), line });
    }
    return this.blocks;
  }
}

const linesOf = (text) =>
  text.split("\n").map((l) => {
    const line = l.endsWith("\r") ? l.slice(0, -1) : l;
    return line[0] === "\t" || line[0] === " "
      ? line.replace(/^[ \t]{1,400}/, (s) => s.replaceAll("\t", "    "))
      : line;
  });

// Blocks of the text; `line` says where each begins.
export function parse(text) {
  return new Blocks(linesOf(text), 0).parse();
}
