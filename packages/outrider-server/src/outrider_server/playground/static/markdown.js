// Markdown as elements. markdown-it reads it; the elements are made here, one by one, so that no text becomes markup.
//
// Whatever a model writes, the page stays alive: nesting, elements and length have bounds, and text beyond them is
// shown as it was written. While an answer grows, only its end is read again.

import MarkdownIt from "/playground/vendor/markdown-it.esm.min.mjs";
import { copy, el } from "/playground/dom.js";

const DEEPEST = 24; // elements in each other
const MOST_TOKENS = 20000; // of one block
const LONGEST = 200000; // characters

const reader = new MarkdownIt("default", { html: false, linkify: true, maxNesting: DEEPEST });
reader.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false }); // what has a scheme is a link

// Shows `text` in `container`. Blocks that were there before stay, so that a selection outlives a growing answer.
// `growing`: more is to come; links to what is defined further down are then made at the end.
export function showMarkdown(container, text, { growing = false } = {}) {
  const before = container.shown ?? { text: "", keys: [], settled: 0, offset: 0 };
  const goesOn = growing && text.startsWith(before.text);
  const { settled, offset } = goesOn ? before : { settled: 0, offset: 0 };
  const end = text.length > LONGEST ? text.lastIndexOf("\n", LONGEST) + 1 || LONGEST : text.length;
  const blocks = read(text.slice(offset, end));
  const rest = end < text.length ? [{ key: text.slice(end), raw: text.slice(end), tokens: null }] : [];
  const found = [...blocks, ...rest];
  let same = settled;
  while (same < before.keys.length && before.keys[same] === found[same - settled]?.key) same += 1;
  while (container.childNodes.length > same) container.lastChild.remove();
  container.append(...found.slice(same - settled).map(element));
  const keys = [...before.keys.slice(0, settled), ...found.map(({ key }) => key)];
  container.shown = { text, keys, ...(rest.length ? { settled, offset } : settle(blocks, settled, offset)) };
}

// Shows these elements in place of a text.
export function forgetMarkdown(container, ...elements) {
  container.replaceChildren(...elements);
  container.shown = null;
}

// Blocks before the last that begins on a whole line cannot change any more, whatever comes.
function settle(blocks, settled, offset) {
  const last = blocks.findLastIndex((block) => block.whole);
  return last > 0 ? { settled: settled + last, offset: offset + blocks[last].start } : { settled, offset };
}

// The blocks of a text: { key, raw, tokens, start, whole }. Of equal keys the elements are equal.
function read(text) {
  const env = {};
  const tokens = reader.parse(text, env);
  const starts = lineStarts(text);
  const defined = Object.keys(env.references ?? {}).length;
  const blocks = [];
  for (let from = 0, at = 0; at < tokens.length; at += 1) {
    if (tokens[at].level > 0 || tokens[at].nesting > 0) continue;
    const [first, next] = tokens[from].map;
    const start = starts[first];
    const raw = text.slice(start, starts[next] ?? text.length);
    blocks.push({ key: `${defined} ${raw}`, raw, tokens: tokens.slice(from, at + 1), start, whole: first < starts.length - 1 });
    from = at + 1;
  }
  return blocks;
}

function lineStarts(text) {
  const starts = [0];
  for (const { index, 0: end } of text.matchAll(/\r\n?|\n/g)) starts.push(index + end.length);
  return starts;
}

function element({ tokens, raw }) {
  if (!tokens || isTooMuch(tokens)) return el("p", { class: "raw" }, raw);
  const holder = el("div");
  fill(holder, tokens);
  return holder.firstChild ?? el("p");
}

// The reader leaves out what is nested deeper than it goes.
function isTooMuch(tokens) {
  let count = 0;
  for (const { level, children } of tokens) {
    count += 1 + (children?.length ?? 0);
    if (level >= DEEPEST - 1 || count > MOST_TOKENS) return true;
  }
  return false;
}

function fill(parent, tokens) {
  const open = [parent];
  tokens.forEach((token, at) => {
    const into = open.at(-1);
    if (token.nesting < 0) open.pop();
    else if (token.nesting > 0) open.push(token.hidden || open.length > DEEPEST ? into : opened(token, into));
    else if (token.type !== "inline") into.append(leaf(token, into));
    else fill(into, tokens[at - 2]?.type === "list_item_open" ? task(into, token.children) : token.children);
  });
}

// An entry that begins with [ ] or [x] has a box; what follows the box is given back.
function task(parent, [first, ...others]) {
  const box = /^\[([ x])\] /i.exec(first?.content ?? "");
  if (!box) return first ? [first, ...others] : [];
  parent.append(el("input", { type: "checkbox", disabled: true, checked: box[1] !== " ", "aria-label": "done" }), " ");
  first.content = first.content.slice(box[0].length);
  return [first, ...others];
}

const SAME = new Set(["p", "blockquote", "ul", "li", "thead", "tbody", "tr", "strong", "em"]);

function opened(token, parent) {
  const made = elementOf(token);
  parent.append(token.type === "table_open" ? el("div", { class: "table", tabindex: "0", role: "region", "aria-label": "table" }, made) : made);
  return made;
}

function elementOf(token) {
  if (SAME.has(token.tag)) return el(token.tag);
  switch (token.type) {
    case "heading_open": return el(`h${Math.min(6, Number(token.tag[1]) + 2)}`);
    case "ordered_list_open": return el("ol", { start: token.attrGet("start") });
    case "table_open": return el("table");
    case "th_open": case "td_open": return el(token.tag, { class: alignment(token) });
    case "s_open": return el("del");
    case "link_open": return link(token.attrGet("href"));
    default: return el("span");
  }
}

const alignment = (token) => token.attrGet("style")?.replace("text-align:", "align-") ?? null;

function leaf(token, parent) {
  switch (token.type) {
    case "fence": case "code_block": return code(token);
    case "hr": return el("hr");
    case "code_inline": return el("code", {}, token.content);
    case "softbreak": return "\n";
    case "hardbreak": return el("br");
    case "image": return image(token, parent); // no other host is asked for anything
    default: return token.content;
  }
}

function code(token) {
  const language = token.info.trim().split(/\s/)[0].slice(0, 24);
  const text = token.content.replace(/\n$/, "");
  const label = language ? `Copy ${language} code` : "Copy code";
  const button = el("button", { type: "button", class: "plain copy", "aria-label": label }, "Copy");
  button.addEventListener("click", () => copy(text, button));
  const body = el("pre", { tabindex: "0", "aria-label": language ? `${language} code` : "code" }, el("code", {}, text));
  return el("div", { class: "code" }, el("div", { class: "code-head" }, el("span", {}, language), button), body);
}

function image(token, parent) {
  const words = token.content || "image";
  if (parent.closest("a")) return words;
  const made = link(token.attrGet("src"));
  made.append(words);
  return made;
}

function link(href) {
  if (!/^(https?:|mailto:)/i.test(href)) return el("span");
  return el("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" });
}
