// The chat that is shown, and the others: opened, kept, renamed, removed, taken out and brought in.

import { showChats } from "/playground/chats.js";
import { say } from "/playground/connection.js";
import { newChat } from "/playground/conversation.js";
import { $, announce } from "/playground/dom.js";
import { search } from "/playground/search.js";
import * as store from "/playground/store.js";
import * as transfer from "/playground/transfer.js";

export class Desk {
  // `onShow()`: another chat is shown. `writing()`: the chat whose answer is being written, or null; `stop()` ends it.
  constructor({ onShow, writing, stop }) {
    Object.assign(this, { onShow, writing, stop, chat: newChat(), saved: 0 });
    this.removed = new Set(); // chats that must not come back, although an answer may still be written
    $("new-chat").addEventListener("click", () => this.startNew());
    $("search").addEventListener("input", () => this.draw(true));
    $("search").addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !$("search").value) return;
      event.stopPropagation();
      $("search").value = "";
      this.draw(true);
    });
    $("export-json").addEventListener("click", () => this.takeOut("json"));
    $("export-markdown").addEventListener("click", () => this.takeOut("md"));
    $("export-all").addEventListener("click", () => this.takeOutAll());
    $("import").addEventListener("click", () => $("import-file").click());
    $("import-file").addEventListener("change", () => this.bringIn());
    store.onChange(() => this.draw());
  }

  // What was stored may be of another time, or damaged; the page works all the same.
  open(id) {
    const before = this.chat;
    try {
      const opened = this.find(id);
      if (!opened) throw new Error("no chat");
      this.show(opened);
    } catch {
      this.show(before.id === id ? newChat() : before);
      say("that chat cannot be read", true);
    }
  }

  find(id) {
    return [this.chat, this.writing()].find((each) => each?.id === id) ?? store.load(id);
  }

  show(chat) {
    this.chat = chat;
    this.onShow();
    this.draw(true);
  }

  startNew() {
    this.show(newChat(this.chat.system));
    $("text").focus();
  }

  keep(changed) {
    if (this.removed.has(changed.id)) return;
    this.saved = Date.now();
    if (!store.save(changed)) say("this browser has no room for the chat", true);
    this.draw();
  }

  rename(id, title) {
    const changed = this.find(id);
    if (changed && changed.title !== title) store.save(Object.assign(changed, { title }));
    this.draw(true);
  }

  remove(id) {
    this.removed.add(id);
    if (id === this.writing()?.id) this.stop();
    store.remove(id);
    if (id === this.chat.id) this.startNew();
    this.draw(true);
  }

  // Not while a title is written or a deletion is asked about, unless that is what has ended.
  draw(ended = false) {
    if (!ended && $("chat-list").querySelector("input, .chat-title")) return;
    const all = store.list();
    const words = $("search").value;
    const found = search(all, words);
    showChats(found, this.chat.id, this);
    $("search").hidden = !all.length;
    $("no-chats").hidden = found.length > 0;
    $("no-chats").textContent = all.length ? `No chat has “${words.trim()}”.` : "Chats are kept in this browser.";
    const empty = Object.keys(this.chat.nodes).length < 2;
    for (const id of ["export-json", "export-markdown"]) $(id).disabled = empty;
    $("export-all").disabled = !all.length;
  }

  takeOut(form) {
    const { chat } = this;
    const name = `${transfer.fileName(chat.title)}.${form}`;
    if (form === "json") transfer.download(name, transfer.asJson([chat]), "application/json");
    else transfer.download(name, transfer.asMarkdown(chat), "text/markdown");
    announce(`Exported as ${name}`);
  }

  takeOutAll() {
    const chats = store.list().map(({ id }) => this.find(id)).filter(Boolean);
    transfer.download("outrider-chats.json", transfer.asJson(chats), "application/json");
    announce(`${chats.length} chats exported`);
  }

  async bringIn() {
    const [file] = $("import-file").files;
    $("import-file").value = "";
    if (!file) return;
    try {
      const chats = transfer.read(await file.text());
      const kept = chats.every((chat) => store.save(chat));
      this.open(chats[0].id);
      say(kept ? `${chats.length === 1 ? "one chat" : `${chats.length} chats`} imported` : "this browser has no room for the chats", !kept);
    } catch (error) {
      say(error.message, true);
    }
  }
}
