// Where messages are written: Enter sends, or queues what is written while an answer is.

import { $, announce, el } from "/playground/dom.js";

export class Composer {
  // `send(text, files)` is called when nothing runs; `isBusy()` says whether something does; `stop()` ends it.
  // `editLast()`: an arrow up in an empty box.
  constructor({ send, stop, isBusy, editLast, attachments }) {
    Object.assign(this, { send, stop, isBusy, editLast, attachments, queue: [] });
    this.field = $("text");
    $("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    $("stop").addEventListener("click", () => stop());
    for (const example of document.querySelectorAll(".example")) {
      example.addEventListener("click", () => this.submit(example.textContent));
    }
    this.field.addEventListener("input", () => this.fit());
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "ArrowUp" && !this.field.value && this.editLast()) event.preventDefault();
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.submit();
    });
  }

  submit(given = null) {
    if (this.attachments.isReading) return;
    const text = (given ?? this.field.value).trim();
    if (!text && !this.attachments.files.length) return;
    const files = this.attachments.take();
    if (given === null) this.field.value = "";
    this.fit();
    if (this.isBusy()) {
      this.queue.push({ text, files });
      announce(`Queued; ${this.queue.length} waiting`);
      this.show();
    } else {
      this.send(text, files);
    }
  }

  // An answer has ended: send what waits, or give it back to be edited if the answer was stopped or failed.
  next(completed) {
    if (completed && this.queue.length) {
      const { text, files } = this.queue.shift();
      this.send(text, files);
    } else if (this.queue.length) {
      this.field.value = [...this.queue.map(({ text }) => text), this.field.value].filter(Boolean).join("\n\n");
      this.attachments.give([...this.queue.flatMap(({ files }) => files), ...this.attachments.files]);
      this.queue = [];
      this.fit();
    }
    this.show();
  }

  clear() {
    this.queue = [];
    this.show();
  }

  show() {
    const busy = this.isBusy();
    $("stop").hidden = !busy;
    $("send").textContent = busy ? "Queue" : "Send";
    $("queue").replaceChildren(...this.queue.map(({ text, files }, index) => {
      const shown = text || files.map(({ name }) => name).join(", ");
      const drop = el("button", { type: "button", class: "plain icon", "aria-label": `Take back: ${shown.slice(0, 60)}` }, "×");
      drop.addEventListener("click", () => {
        this.queue.splice(index, 1);
        this.show();
        this.field.focus();
      });
      return el("li", {}, el("span", {}, shown), drop);
    }));
    $("queue").hidden = !this.queue.length;
  }

  fit() {
    this.field.style.height = "auto";
    this.field.style.height = `${this.field.scrollHeight + 2}px`;
  }
}
