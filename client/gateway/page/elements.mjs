// Elements of the objects that markdown.mjs makes. Called by render.mjs; `document` is a stand-in under node.
//
// No text becomes HTML: the functions create elements of a fixed set, and put text into text nodes only.

const TAGS = { b: "strong", i: "em", s: "del", code: "code", a: "a", br: "br" };

export function buildInline(document, parent, nodes) {
  for (const n of nodes) {
    if (typeof n === "string") {
      parent.append(document.createTextNode(n));
      continue;
    }
    const element = document.createElement(TAGS[n.type]);
    if (n.type === "a") {
      element.setAttribute("href", n.href);
      element.setAttribute("rel", "noopener noreferrer");
      element.setAttribute("target", "_blank");
      element.setAttribute("title", n.href);
    }
    if (n.text !== undefined) element.append(document.createTextNode(n.text));
    if (n.nodes) buildInline(document, element, n.nodes);
    parent.append(element);
  }
  return parent;
}

function buildCode(document, block) {
  const box = document.createElement("div"),
    head = document.createElement("div"),
    name = document.createElement("span");
  const copy = document.createElement("button"),
    pre = document.createElement("pre"),
    code = document.createElement("code");
  box.className = "code";
  head.className = "code-head";
  name.append(document.createTextNode(block.lang || "text"));
  copy.className = "copy";
  copy.setAttribute("type", "button");
  copy.setAttribute("aria-label", "Copy this code");
  copy.append(document.createTextNode("Copy"));
  pre.setAttribute("tabindex", "0");
  code.append(document.createTextNode(block.text));
  head.append(name, copy);
  pre.append(code);
  box.append(head, pre);
  return box;
}

function buildList(document, block) {
  const list = document.createElement(block.ordered ? "ol" : "ul");
  if (block.ordered && block.start !== 1) list.setAttribute("start", String(block.start));
  for (const item of block.items) {
    const li = document.createElement("li");
    if (item.task !== null) {
      li.className = "task";
      const box = document.createElement("input");
      box.setAttribute("type", "checkbox");
      box.setAttribute("disabled", "");
      box.setAttribute("aria-label", item.task ? "done" : "to do");
      if (item.task) box.setAttribute("checked", "");
      li.append(box);
    }
    for (const b of item.blocks) {
      if (block.tight && b.type === "p") buildInline(document, li, b.nodes);
      else li.append(buildBlock(document, b));
    }
    list.append(li);
  }
  return list;
}

function buildTable(document, block) {
  const box = document.createElement("div"),
    table = document.createElement("table");
  const row = (parent, tag, cells) => {
    const tr = document.createElement("tr");
    cells.forEach((nodes, i) => {
      const cell = document.createElement(tag);
      if (block.align[i]) cell.className = block.align[i];
      tr.append(buildInline(document, cell, nodes));
    });
    parent.append(tr);
  };
  const head = document.createElement("thead"),
    body = document.createElement("tbody");
  box.className = "table";
  box.setAttribute("tabindex", "0");
  row(head, "th", block.head);
  for (const cells of block.rows) row(body, "td", cells);
  table.append(head, body);
  box.append(table);
  return box;
}

export function buildBlock(document, block) {
  if (block.type === "code") return buildCode(document, block);
  if (block.type === "list") return buildList(document, block);
  if (block.type === "table") return buildTable(document, block);
  if (block.type === "rule") return document.createElement("hr");
  if (block.type === "quote") {
    const quote = document.createElement("blockquote");
    for (const b of block.blocks) quote.append(buildBlock(document, b));
    return quote;
  }
  if (block.type === "plain") {
    const box = document.createElement("div");
    box.className = "plain";
    box.append(document.createTextNode(block.text));
    return box;
  }
  // the page has its own h1 and h2
  return buildInline(
    document,
    document.createElement(block.type === "p" ? "p" : "h" + Math.min(6, block.level + 2)),
    block.nodes,
  );
}

// Elements that a block becomes, roughly: what a browser has to lay out.
export function sizeOf(block) {
  const all = (list, size) => list.reduce((sum, b) => sum + size(b), 0);
  const inside = (nodes) => all(nodes, (n) => (n.nodes ? 1 + inside(n.nodes) : 1));
  if (block.type === "list") return 1 + all(block.items, (i) => 1 + all(i.blocks, sizeOf));
  if (block.type === "quote") return 1 + all(block.blocks, sizeOf);
  if (block.type === "table")
    return 1 + inside(block.head) + all(block.rows, (r) => 1 + all(r, (c) => 1 + inside(c)));
  return 1 + inside(block.nodes ?? []);
}
