// The list of chats: open, rename, delete. A search shows a passage of each.

import { $, button, el } from "/playground/dom.js";

// `actions`: open(id), rename(id, title), remove(id).
export function showChats(chats, currentId, actions) {
  const rows = chats.map((chat) => row(chat, chat.id === currentId, actions));
  $("chat-list").replaceChildren(...rows);
  $("no-chats").hidden = rows.length > 0;
}

function row(chat, current, actions) {
  const title = chat.title || "New chat";
  const open = el("button", { type: "button", class: "chat-open", "aria-current": current ? "page" : null }, el("span", {}, title),
    chat.passage ? el("span", { class: "passage" }, chat.passage) : null);
  open.addEventListener("click", () => actions.open(chat.id));
  const item = el("li", { class: current ? "current" : "" }, open,
    button("✎", () => edit(item, chat, actions), { class: "plain icon", "aria-label": `Rename: ${title}`, title: "Rename" }),
    button("×", () => confirmRemoval(item, chat, actions), { class: "plain icon", "aria-label": `Delete: ${title}`, title: "Delete" }));
  return item;
}

function edit(item, chat, actions) {
  const field = el("input", { type: "text", value: chat.title, "aria-label": "Title", maxlength: "80" });
  let ended = false;
  const end = (title) => {
    if (ended) return;
    ended = true;
    actions.rename(chat.id, title);
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") end(field.value.trim() || chat.title);
    if (event.key === "Escape") end(chat.title);
    event.stopPropagation();
  });
  field.addEventListener("blur", () => end(field.value.trim() || chat.title));
  item.replaceChildren(field);
  field.focus();
  field.select();
}

function confirmRemoval(item, chat, actions) {
  const title = chat.title || "New chat";
  const yes = button("Delete", () => actions.remove(chat.id), { class: "danger" });
  item.replaceChildren(el("span", { class: "chat-title" }, `Delete “${title}”?`), yes, button("Keep", () => actions.rename(chat.id, chat.title)));
  yes.focus();
}
