// A chat is a tree of messages: an edit or a new answer is a sibling of the old one, and nothing is lost.
//
//     root ── user ── assistant          node: { id, parent, role, content, children, chosen, ... }
//          └─ user'─ assistant'          chosen: the child that is shown
//                 └─ assistant''

import { asText } from "/playground/files.js";

const ROOT = "root";

export const newId = () => Array.from(crypto.getRandomValues(new Uint32Array(2)), (n) => n.toString(36)).join("");

export function newChat(system = "") {
  const now = Date.now();
  const nodes = { [ROOT]: { id: ROOT, parent: null, role: "root", children: [], chosen: null } };
  return { id: newId(), title: "", system, created: now, updated: now, nodes };
}

// The messages that are shown, first to last.
export function path(chat) {
  const shown = [];
  let node = chat.nodes[ROOT];
  while (node.chosen) {
    node = chat.nodes[node.chosen];
    shown.push(node);
  }
  return shown;
}

export const last = (chat) => path(chat).at(-1) ?? chat.nodes[ROOT];

// The messages down to a node, itself included.
export function ancestry(chat, id) {
  const found = [];
  for (let node = chat.nodes[id]; node && node.id !== ROOT; node = chat.nodes[node.parent]) found.unshift(node);
  return found;
}

export function add(chat, parent, fields) {
  const node = { id: newId(), parent, children: [], chosen: null, content: "", ...fields };
  chat.nodes[node.id] = node;
  chat.nodes[parent].children.push(node.id);
  chat.nodes[parent].chosen = node.id;
  touch(chat);
  if (!chat.title && node.role === "user") chat.title = (node.content.trim() || node.files?.[0].name || "").split("\n")[0].slice(0, 60);
  return node;
}

// A copy of the chat in which `text` is asked next, and the id of that message. The chat stays as it is.
export function asking(chat, text) {
  const parent = last(chat);
  const nodes = { ...chat.nodes, [parent.id]: { ...parent, children: [...parent.children] } };
  const copy = { ...chat, nodes };
  return { chat: copy, id: add(copy, parent.id, { role: "user", content: text }).id };
}

export function siblings(chat, node) {
  const all = chat.nodes[node.parent].children;
  return { all, index: all.indexOf(node.id) };
}

export function choose(chat, id) {
  chat.nodes[chat.nodes[id].parent].chosen = id;
  touch(chat);
}

// A chat of its own that begins with the messages down to a node.
export function fork(chat, id) {
  const made = newChat(chat.system);
  made.title = `${chat.title} (branch)`.slice(0, 70);
  let parent = ROOT;
  for (const { role, content, ...rest } of ancestry(chat, id)) {
    const { id: _id, parent: _parent, children: _children, chosen: _chosen, ...kept } = rest;
    parent = add(made, parent, { role, content, ...structuredClone(kept) }).id;
  }
  return made;
}

export function touch(chat) {
  chat.updated = Date.now();
}

// What the server is sent: the system message, then the messages down to a node.
export function asMessages(chat, id) {
  const system = chat.system.trim() ? [{ role: "system", content: chat.system }] : [];
  return [...system, ...ancestry(chat, id).map(asMessage)];
}

function asMessage(node) {
  if (node.role === "tool") return { role: "tool", content: node.content, tool_call_id: node.callId };
  if (node.role === "assistant" && node.calls?.length) {
    return { role: "assistant", content: node.content || null, tool_calls: node.calls };
  }
  return { role: node.role, content: contentOf(node) };
}

function contentOf({ content, files = [] }) {
  const text = [...files.filter(({ kind }) => kind === "text").map(asText), content].filter(Boolean).join("\n\n");
  const images = files.filter(({ kind }) => kind === "image").map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return images.length ? [...images, ...(text ? [{ type: "text", text }] : [])] : text;
}
