// Search in all chats: titles and messages.

import { load } from "/playground/store.js";

const AROUND = 24; // characters before what was found
const LONGEST = 90;

const texts = new Map(); // id -> { updated, text }: a chat is read once, and again when it has changed

// Those of `chats` that have all `words`, each with a passage of its messages that has one of them, or "".
export function search(chats, words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (!wanted.length) return chats.map((chat) => ({ ...chat, passage: "" }));
  return chats.flatMap((chat) => {
    const text = textOf(chat);
    const all = `${chat.title}\n${text}`.toLowerCase();
    return wanted.every((word) => all.includes(word)) ? [{ ...chat, passage: passage(text, wanted) }] : [];
  });
}

function textOf({ id, updated }) {
  if (texts.get(id)?.updated !== updated) {
    const nodes = Object.values(load(id)?.nodes ?? {});
    const parts = nodes.flatMap(({ content, files }) => [content, ...(Array.isArray(files) ? files : []).map(({ name, text }) => `${name} ${text ?? ""}`)]);
    texts.set(id, { updated, text: parts.filter(Boolean).join("\n") });
  }
  return texts.get(id).text;
}

function passage(text, wanted) {
  const small = text.toLowerCase();
  const places = wanted.map((word) => small.indexOf(word)).filter((place) => place >= 0);
  if (!places.length) return "";
  const at = Math.min(...places);
  const from = at <= AROUND ? 0 : Math.max(text.lastIndexOf(" ", at - AROUND), at - 2 * AROUND) + 1;
  const cut = text.slice(from, from + LONGEST).replace(/\s+/g, " ").trim();
  return `${from > 0 ? "…" : ""}${cut}${from + LONGEST < text.length ? "…" : ""}`;
}
