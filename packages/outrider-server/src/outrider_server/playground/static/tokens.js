// The token view: where each token came from, what else the model held likely, and the draft of its step.

import { post } from "/playground/api.js";
import { asMessages } from "/playground/conversation.js";
import { $, el } from "/playground/dom.js";
import { describe, drawTree } from "/playground/drafts.js";

export const ORIGINS = {
  accepted: "accepted: drafted, and kept",
  recovered: "recovered: in place of a refused draft",
  bonus: "bonus: after a draft kept whole",
  target: "plain: nothing was drafted",
};
const COLOURS = 6;
const TOP = 5; // alternatives of each token
const known = new Map(); // node id -> promise of its tokens' alternatives
let seen = []; // sources, in the order in which their colours are given

export function setSources(sources) {
  seen = sources.filter((source) => source !== "none");
}

export function colour(source) {
  if (source === "none") return "";
  if (!seen.includes(source)) seen.push(source);
  return `s${seen.indexOf(source) % COLOURS}`;
}

// Shows the tokens of an answer; those that are there already stay.
export function showTokens(container, node) {
  const tokens = node.steps.flatMap((step, at) => step.tokens.map((token) => [at, token]));
  if (container.childElementCount > tokens.length) container.replaceChildren();
  for (const [at, [id, text, origin, source]] of tokens.slice(container.childElementCount)) {
    const by = origin === "accepted" ? source : "none";
    const made = el("span", { class: `tok ${origin} ${colour(by)}`, "data-step": at, "data-id": id }, text || "∅");
    if (!text) made.classList.add("empty");
    container.append(made);
  }
}

// -- the inspector: a card about one token, under the pointer or moved by the arrow keys -------------------------

let current = null; // { container, index, pinned }

// `find(container)`: { chat, node, model } of an answer's tokens.
export function watchTokens(log, find) {
  const at = (event) => event.target.closest?.(".tok");
  log.addEventListener("pointerover", (event) => {
    const token = at(event);
    if (token && event.pointerType === "mouse" && !current?.pinned) inspect(token, find, false);
    else if (!token && current && !current.pinned) close();
  });
  log.addEventListener("pointerleave", () => { if (current && !current.pinned) close(); });
  log.addEventListener("click", (event) => {
    const token = at(event);
    if (token) inspect(token, find, true);
    else if (current) close();
  });
  log.addEventListener("keydown", (event) => {
    const tokens = event.target.closest?.(".tokens");
    const way = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (!tokens || way === undefined) return;
    event.preventDefault();
    const from = current?.container === tokens ? current.index : -1;
    const index = Math.min(tokens.childElementCount - 1, Math.max(0, from + way));
    if (tokens.children[index]) inspect(tokens.children[index], find, true);
  });
  log.addEventListener("scroll", () => { if (current) follow(log); });
}

// The card stays at its token while the conversation moves, as long as that can be seen.
function follow(log) {
  const [box, frame] = [current.token.getBoundingClientRect(), log.getBoundingClientRect()];
  if (box.bottom < frame.top || box.top > frame.bottom) close();
  else position(current.token);
}

export function close() {
  if (!current) return false;
  current.token.classList.remove("inspected");
  $("inspector").hidden = true;
  current = null;
  return true;
}

function inspect(token, find, pinned) {
  const container = token.parentElement;
  const { chat, node, model } = find(container);
  if (!node) return;
  if (current?.token === token) {
    current.pinned ||= pinned;
    $("inspector").classList.toggle("pinned", current.pinned);
    return;
  }
  close();
  const index = [...container.children].indexOf(token);
  current = { container, index, token, pinned };
  token.classList.add("inspected");
  const step = node.steps[Number(token.dataset.step)];
  const [id, text, origin, source] = node.steps.flatMap((each) => each.tokens)[index];
  const alternatives = el("ol", { class: "alternatives" }, el("li", { class: "quiet" }, "Reading what else was likely…"));
  const from = origin === "target" ? "" : ` · ${source}`;
  const tree = step.draft?.tokens.length ? [el("div", { class: "tree-box", tabindex: "0" }, drawTree(step))] : [];
  $("inspector").replaceChildren(
    el("p", { class: "inspector-token" }, el("code", {}, JSON.stringify(text)), el("span", { class: "quiet" }, ` token ${id}`)),
    el("p", {}, el("span", { class: `swatch ${origin}` }), ` ${ORIGINS[origin]}${from}`),
    alternatives,
    el("p", { class: "quiet" }, `Step ${Number(token.dataset.step) + 1}: ${describe(step)}`), ...tree);
  $("inspector").classList.toggle("pinned", pinned);
  $("inspector").hidden = false;
  position(token);
  showAlternatives(alternatives, chat, node, model, index, token);
}

async function showAlternatives(list, chat, node, model, index, token) {
  try {
    const all = await alternativesOf(chat, node, model);
    const { taken, likely } = all[index];
    const entries = Object.entries(likely).sort((a, b) => b[1] - a[1]);
    list.replaceChildren(...entries.map(([other, logprob]) => alternative(other, Math.exp(logprob), other === taken)));
  } catch (error) {
    list.replaceChildren(el("li", { class: "quiet" }, `What else was likely cannot be read: ${error.message}`));
  }
  if (current?.token === token) position(token);
}

function alternative(text, chance, taken) {
  const bar = el("span", { class: "chance" });
  bar.style.width = `${100 * chance}%`;
  const value = chance < 0.0005 ? "<0.1%" : `${(100 * chance).toFixed(1)}%`;
  return el("li", { class: taken ? "taken" : "" }, el("code", {}, JSON.stringify(text)), el("span", { class: "chance-track" }, bar),
    el("span", { class: "chance-value" }, value));
}

function position(token) {
  const box = token.getClientRects()[0] ?? token.getBoundingClientRect();
  const card = $("inspector");
  const below = box.bottom + 8 + card.offsetHeight < innerHeight || box.top < card.offsetHeight;
  card.style.left = `${Math.max(8, Math.min(box.left, innerWidth - card.offsetWidth - 8))}px`;
  card.style.top = `${Math.max(8, below ? Math.min(box.bottom + 8, innerHeight - card.offsetHeight - 8) : box.top - card.offsetHeight - 8)}px`;
}

// The answer is read once more with all its alternatives: so they cost nothing while it is written.
function alternativesOf(chat, node, model) {
  const key = `${node.id} ${node.steps.length}`;
  if (!known.has(key)) {
    const reading = read(chat, node, model);
    reading.catch(() => known.delete(key)); // it may work the next time
    known.set(key, reading);
  }
  return known.get(key);
}

async function read(chat, node, model) {
  const { system, tools } = node.asked ?? {};
  const messages = asMessages({ ...chat, system: system ?? chat.system }, node.parent);
  const named = { model: model.id };
  const asked = model.has_chat_template
    ? { ...named, messages, ...(tools ? { tools } : {}) }
    : { ...named, prompt: `${messages.map((message) => message.content).join("\n")}\n` };
  const { tokens: prompt } = await post("/tokenize", asked);
  const output = node.steps.flatMap((step) => step.tokens.map(([id]) => id));
  const body = { ...named, prompt: [...prompt, ...output], echo: true, max_tokens: 0, logprobs: TOP, speculation: "off" };
  const { choices: [choice] } = await post("/v1/completions", body);
  const { tokens, top_logprobs: tops } = choice.logprobs; // text that shares a character with its neighbour is "\ufffd"
  return tops.map((likely, i) => ({ taken: tokens[i], likely })).slice(prompt.length);
}
