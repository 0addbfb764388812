// Elements without markup: every text becomes a text node, whatever it says.

export const $ = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

// el("button", { class: "plain", type: "button", onclick: send }, "Send"); null and false leave an attribute out.
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export function button(label, onclick, attributes = {}) {
  return el("button", { type: "button", class: "plain", onclick, ...attributes }, label);
}

// Says it to who cannot see the page change.
export function announce(text) {
  $("announcer").textContent = text;
}

// `origin`: the button that asked for it, which says that it is done.
export async function copy(text, origin = null) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyBySelection(text); // pages that do not come by https have no clipboard
  }
  announce("Copied");
  if (!origin) return;
  const before = origin.textContent;
  origin.textContent = "Copied";
  setTimeout(() => { origin.textContent = before; }, 1200);
}

function copyBySelection(text) {
  const area = el("textarea", { class: "hidden", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

// At most one call a frame, and a third of the time, however often it is asked for: slow drawings come less often.
export function eachFrame(draw) {
  let waiting = false, next = 0; // ms
  const frame = () => {
    const began = performance.now();
    waiting = false;
    draw();
    next = performance.now() + 2 * (performance.now() - began);
  };
  return () => {
    if (waiting) return;
    waiting = true;
    setTimeout(() => requestAnimationFrame(frame), Math.max(0, next - performance.now()));
  };
}

export const percent = (share) => (share === null || share === undefined ? "–" : `${Math.round(100 * share)}%`);

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
