// A text that grows, shown as Markdown in an element. Called by talk.mjs for each answer and its thinking.
//
// Blocks before the last one do not change any more and stay as they are; the last one is made anew when text
// comes. A last block that grows very long is shown as plain text until the answer ends, and so is everything after
// a number of elements: the page stays quick.
import { parse } from "./markdown.mjs";
import { buildBlock, sizeOf } from "./elements.mjs";

const TAIL = 50000; // characters of a last block that is made anew
const ELEMENTS = 20000; // in one answer
const CHUNK = 8000; // characters of plain text in one element, and those of one without an end of a line
const LONGEST = 64000;

// Where the line `wanted` of the text begins.
function startOf(text, wanted) {
  let start = 0;
  for (let line = 0; line < wanted; line++) start = text.indexOf("\n", start) + 1;
  return start;
}

// Pieces of a long text: each ends with a line, where there is one.
export function pieces(text) {
  const list = [];
  for (let from = 0; from < text.length;) {
    const cut =
      text.length - from > CHUNK ? text.indexOf("\n", from + CHUNK) + 1 || text.length : text.length;
    let end = Math.min(cut, from + LONGEST);
    if (end < text.length && /[\ud800-\udbff]/.test(text[end - 1])) end++; // not amid a character
    list.push(text.slice(from, end));
    from = end;
  }
  return list;
}

export class Rendered {
  constructor(box) {
    this.box = box;
    this.reset();
  }

  reset() {
    this.box.replaceChildren();
    this.offset = 0; // characters of the finished blocks
    this.shown = 0; // characters shown
    this.done = false; // nothing follows them
    this.elements = 0;
    this.tail = []; // elements of what is not finished
    this.code = null; // the text node of a code block that is open, and its language
    this.lang = "";
    this.plain = -1; // characters of the tail that are shown as plain text; -1: none
  }

  clearTail() {
    for (const element of this.tail) element.remove();
    this.tail = [];
    this.code = null;
    this.plain = -1;
  }

  add(block) {
    const element = buildBlock(document, block);
    this.box.append(element);
    this.tail.push(element);
    return element;
  }

  addPlain(text) {
    for (const piece of pieces(text)) this.add({ type: "plain", text: piece });
  }

  // More of a block that is too long to be made anew.
  grow(rest) {
    if (this.plain < 0) {
      this.clearTail();
      this.plain = 0;
    }
    const more = rest.slice(this.plain),
      last = this.tail.at(-1)?.firstChild;
    this.plain = rest.length;
    if (last && (last.length < CHUNK || (last.length < LONGEST && !last.data.endsWith("\n"))))
      last.appendData(more);
    else this.addPlain(more);
  }

  update(text, done) {
    if (text.length < this.shown) this.reset();
    if (text.length === this.shown && (!done || this.done)) return;
    this.shown = text.length;
    this.done = done;
    const rest = text.slice(this.offset);
    if (this.elements > ELEMENTS || (!done && rest.length > TAIL)) return this.grow(rest);
    const blocks = parse(rest),
      last = blocks.at(-1);
    if (
      this.code &&
      blocks.length === 1 &&
      last.type === "code" &&
      last.open &&
      last.lang === this.lang &&
      last.text.startsWith(this.code.data)
    )
      return this.code.appendData(last.text.slice(this.code.data.length));
    this.clearTail();
    for (const block of blocks) {
      const size = sizeOf(block);
      if (this.elements + size > ELEMENTS) {
        this.elements = ELEMENTS + 1;
        this.offset += startOf(rest, block.line);
        this.tail = [];
        return this.grow(text.slice(this.offset));
      }
      if (block !== last) this.elements += size;
      const element = this.add(block);
      this.code = block.type === "code" && block.open ? element.lastChild.firstChild.firstChild : null;
      this.lang = block.lang;
    }
    this.tail = this.tail.slice(-1);
    if (last) this.offset += startOf(rest, last.line);
  }
}
