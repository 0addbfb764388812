// Markdown as elements. marked reads it; the elements are made here, one by one, so that no text becomes markup.

import { Lexer } from "/playground/vendor/marked.esm.js";
import { copy, el } from "/playground/dom.js";

const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

// Shows `text` in `container`. Blocks that were there before stay, so that a selection outlives a growing answer.
export function showMarkdown(container, text) {
  const blocks = Lexer.lex(text, { gfm: true, breaks: false });
  const before = container.blocks ?? [];
  let same = 0;
  while (same < before.length && same < blocks.length && before[same] === key(blocks[same])) same += 1;
  while (container.children.length > same) container.lastChild.remove();
  for (const token of blocks.slice(same)) container.append(block(token) ?? el("span", { hidden: true }));
  container.blocks = blocks.map(key);
}

const key = (token) => `${token.type} ${token.raw}`;

function block(token) {
  switch (token.type) {
    case "heading": return el(`h${Math.min(6, token.depth + 2)}`, {}, ...inline(token.tokens));
    case "paragraph": return el("p", {}, ...inline(token.tokens));
    case "code": return code(token);
    case "blockquote": return el("blockquote", {}, ...blocks(token.tokens));
    case "list": return list(token);
    case "table": return table(token);
    case "hr": return el("hr");
    case "space": case "def": return null;
    case "text": return el("p", {}, ...inline(token.tokens ?? [token]));
    default: return el("p", {}, token.raw); // raw HTML is shown as it was written
  }
}

const blocks = (tokens) => tokens.map(block).filter((made) => made !== null);

function code(token) {
  const language = (token.lang ?? "").split(/\s/)[0].slice(0, 24);
  const label = language ? `Copy ${language} code` : "Copy code";
  const button = el("button", { type: "button", class: "plain copy", "aria-label": label }, "Copy");
  button.addEventListener("click", () => copy(token.text, button));
  const body = el("pre", { tabindex: "0", "aria-label": language ? `${language} code` : "code" }, el("code", {}, token.text));
  return el("div", { class: "code" }, el("div", { class: "code-head" }, el("span", {}, language), button), body);
}

function list(token) {
  const items = token.items.map((item) => {
    const box = item.task ? [el("input", { type: "checkbox", disabled: true, checked: item.checked, "aria-label": "done" }), " "] : [];
    return el("li", {}, ...box, ...item.tokens.flatMap((part) => tight(part, token.loose)));
  });
  return el(token.ordered ? "ol" : "ul", { start: token.ordered && token.start !== 1 ? token.start : null }, ...items);
}

function tight(part, loose) {
  if (part.type === "checkbox") return [];
  return part.type === "text" && !loose ? inline(part.tokens ?? [part]) : blocks([part]);
}

function table(token) {
  const row = (cells, tag) => el("tr", {}, ...cells.map((cell, i) => {
    const align = token.align[i];
    return el(tag, { class: align ? `align-${align}` : null }, ...inline(cell.tokens));
  }));
  const rows = token.rows.map((cells) => row(cells, "td"));
  return el("div", { class: "table", tabindex: "0", role: "region", "aria-label": "table" },
    el("table", {}, el("thead", {}, row(token.header, "th")), el("tbody", {}, ...rows)));
}

function inline(tokens = []) {
  return tokens.map((token) => {
    switch (token.type) {
      case "strong": return el("strong", {}, ...inline(token.tokens));
      case "em": return el("em", {}, ...inline(token.tokens));
      case "del": return el("del", {}, ...inline(token.tokens));
      case "codespan": return el("code", {}, token.text);
      case "br": return el("br");
      case "link": return link(token.href, inline(token.tokens));
      case "image": return link(token.href, [`${token.text || "image"}`]); // no other host is asked for anything
      case "escape": return token.text;
      case "text": return token.tokens ? el("span", {}, ...inline(token.tokens)) : decoded(token.text);
      default: return token.raw;
    }
  });
}

function link(href, children) {
  if (!/^(https?:|mailto:)/i.test(href)) return el("span", {}, ...children);
  return el("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}

function decoded(text) {
  return text.replace(/&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|([a-z]+));/gi, (whole, decimal, hex, name) => {
    if (name) return ENTITIES[name.toLowerCase()] ?? whole;
    const point = decimal ? Number(decimal) : parseInt(hex, 16);
    return point > 0 && point <= 0x10ffff ? String.fromCodePoint(point) : whole;
  });
}
