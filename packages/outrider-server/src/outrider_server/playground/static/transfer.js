// Chats as files: taken out as JSON or Markdown, and brought in again, from here or from other programs.
//
//     { outrider: 1, chats: [{ title, system, messages: [{ role, content }], tree }] }
//
// A file of one chat has its fields at the top, so that `outrider chat --load` goes on with its messages.

import { add, asMessages, last, newChat, newId, path } from "/playground/conversation.js";
import { el } from "/playground/dom.js";
import { isTree } from "/playground/store.js";

const ROLES = ["user", "assistant", "tool"];

export function asJson(chats) {
  const each = chats.map((chat) => ({ title: chat.title, system: chat.system, messages: plain(chat), tree: chat }));
  return JSON.stringify(each.length === 1 ? { outrider: 1, ...each[0] } : { outrider: 1, chats: each }, null, 1);
}

// Texts alone: pictures are kept in the tree.
function plain(chat) {
  return asMessages(chat, last(chat).id).map(({ content, ...message }) => ({
    ...message, content: Array.isArray(content) ? content.filter(({ type }) => type === "text").map(({ text }) => text).join("\n") : content ?? "",
  }));
}

export function asMarkdown(chat) {
  const names = { user: "You", assistant: "Answer", tool: "Result of a tool" };
  const system = chat.system.trim() ? [`*System prompt:* ${chat.system.trim()}`] : [];
  const parts = path(chat).map(({ role, content, files = [] }) => {
    const attached = files.map(({ name }) => `*Attached: ${name}*`);
    return [`## ${names[role]}`, ...attached, content.trim()].filter(Boolean).join("\n\n");
  });
  return `${[`# ${chat.title || "Chat"}`, ...system, ...parts].join("\n\n")}\n`;
}

// The chats of a file, each new. Throws Error with the reason.
export function read(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON: choose one that was exported here, or a list of messages.");
  }
  const entries = Array.isArray(found?.chats) ? found.chats : [found];
  const chats = entries.map(chatOf).filter(Boolean);
  chats.forEach((chat, place) => { chat.updated = Date.now() - place; }); // the list keeps their order
  if (!chats.length) throw new Error("The file holds no chat: choose one that was exported here, or a list of messages.");
  return chats;
}

function chatOf(entry) {
  if (isTree(entry?.tree)) return { ...entry.tree, id: newId(), title: titleOf(entry.tree) };
  const messages = Array.isArray(entry) ? entry : entry?.messages;
  if (!Array.isArray(messages) || !messages.length) return null;
  const chat = newChat();
  for (const message of messages) {
    const { role } = message ?? {};
    const content = textOf(message?.content);
    if (role === "system" || role === "developer") chat.system = content;
    else if (ROLES.includes(role)) add(chat, last(chat).id, { role, content, ...(role === "assistant" ? { status: "done" } : {}) });
    else return null;
  }
  if (typeof entry.title === "string" && entry.title) chat.title = entry.title.slice(0, 80);
  return path(chat).length ? chat : null;
}

const titleOf = ({ title }) => (typeof title === "string" ? title.slice(0, 80) : "");

function textOf(content) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content.map((part) => (typeof part?.text === "string" ? part.text : "")).filter(Boolean).join("\n");
}

// Gives the browser a file to keep.
export function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

export const fileName = (title) => title.replace(/[^\p{L}\p{N} _-]+/gu, "").trim().replace(/ +/g, "-").slice(0, 50) || "chat";
