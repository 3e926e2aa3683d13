// Small helpers for elements. Called by the page's other modules. Text goes into text nodes only.

export const $ = (id) => document.getElementById(id);

export function add(parent, tag, text, name) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (name) node.className = name;
  parent.append(node);
  return node;
}

export function button(parent, text, name, label, click) {
  const node = add(parent, "button", text, name);
  node.type = "button";
  if (label) node.setAttribute("aria-label", label);
  if (label && label !== text) node.title = label;
  node.onclick = click;
  return node;
}

// For screen readers: an answer is not read aloud piece by piece.
export function announce(text) {
  $("announce").textContent = text;
}

let hiding = 0;
// A line at the bottom; with `action` ([text, function]) it has a button.
export function toast(text, action) {
  const box = $("toast");
  clearTimeout(hiding);
  box.replaceChildren();
  box.hidden = !text;
  if (!text) return;
  add(box, "span", text);
  if (action)
    button(box, action[0], "", action[0], () => {
      toast("");
      action[1]();
    });
  button(box, "\u00d7", "close", "Close this message", () => toast(""));
  hiding = setTimeout(() => toast(""), 8000);
}

// navigator.clipboard exists on https and localhost only.
export async function copy(text, from) {
  let good = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = add(document.body, "textarea", undefined, "away");
    area.value = text;
    area.select();
    good = document.execCommand("copy");
    area.remove();
    from.focus();
  }
  const before = from.dataset.text ?? (from.dataset.text = from.textContent);
  from.textContent = good ? "Copied" : "Not copied";
  announce(from.textContent);
  setTimeout(() => {
    from.textContent = before;
  }, 1500);
}
