// The keyboard: what each key does, and the map that shows it.

import { $, el } from "/playground/dom.js";
import { keepSettings, settings } from "/playground/settings.js";

const IN_THE_BOX = [
  ["Enter", "send; while an answer is written, queue"],
  ["Shift+Enter", "a new line"],
  ["↑", "in an empty box: edit the last message"],
  ["Esc", "stop the answer; again, leave the box"],
];
const ANYWHERE = [["Ctrl+K", "search in chats", "search"], ["Ctrl+/", "this map", "map"]];
const OUTSIDE = [
  ["?", "this map", "map"], ["/", "write a message", "write"], ["n", "new chat", "fresh"], ["s", "search in chats", "search"],
  ["e", "edit the last message", "edit"], ["r", "answer again", "again"], ["c", "copy the last answer", "copy"],
  ["p", "figures and settings", "panel"], ["t", "show tokens", "tokens"], ["a", "attach a file", "attach"],
];

// `actions`: a function for each third entry above, but "map".
export function setUpKeys(actions) {
  const act = { ...actions, map: () => $("key-map").showModal() };
  $("single-keys").checked = settings.singleKeys !== false;
  $("single-keys").addEventListener("change", () => {
    settings.singleKeys = $("single-keys").checked;
    keepSettings();
  });
  $("key-list").append(...[["In the message box", IN_THE_BOX], ["Anywhere", ANYWHERE], ["Outside of text boxes", OUTSIDE]].map(group));
  $("show-keys").addEventListener("click", act.map);
  $("close-keys").addEventListener("click", () => $("key-map").close());
  $("key-map").addEventListener("click", (event) => { if (event.target === $("key-map")) $("key-map").close(); });
  document.addEventListener("keydown", (event) => {
    const name = wanted(event);
    if (!name || event.defaultPrevented || $("key-map").open) return;
    event.preventDefault();
    act[name]();
  });
}

function wanted(event) {
  const { key, ctrlKey, metaKey, altKey, target } = event;
  if ((ctrlKey || metaKey) && !altKey) return ANYWHERE.find(([keys]) => keys === `Ctrl+${key.length === 1 ? key.toUpperCase() : key}`)?.[2];
  const types = target.closest("textarea, select, input:not([type=checkbox]), [contenteditable], .tokens, .inspector");
  if (ctrlKey || metaKey || altKey || types || settings.singleKeys === false) return null;
  return OUTSIDE.find(([keys]) => keys === key)?.[2];
}

function group([title, keys]) {
  return el("section", {}, el("h3", {}, title), el("dl", { class: "keys-table" },
    ...keys.map(([key, words]) => el("div", {}, el("dt", {}, el("kbd", {}, key)), el("dd", {}, words)))));
}
