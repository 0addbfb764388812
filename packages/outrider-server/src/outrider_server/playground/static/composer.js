// Where messages are written: Enter sends, or queues what is written while an answer is.

import { $, announce, el } from "/playground/dom.js";

export class Composer {
  // `send(text)` is called when nothing runs; `isBusy()` says whether something does; `stop()` ends it.
  constructor({ send, stop, isBusy }) {
    Object.assign(this, { send, stop, isBusy, queue: [] });
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
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.submit();
    });
  }

  submit(given = null) {
    const text = (given ?? this.field.value).trim();
    if (!text) return;
    if (given === null) this.field.value = "";
    this.fit();
    if (this.isBusy()) {
      this.queue.push(text);
      announce(`Queued; ${this.queue.length} waiting`);
      this.show();
    } else {
      this.send(text);
    }
  }

  // An answer has ended: send what waits, or give it back to be edited if the answer was stopped or failed.
  next(completed) {
    if (completed && this.queue.length) {
      this.send(this.queue.shift());
    } else if (this.queue.length) {
      this.field.value = [...this.queue, this.field.value].filter(Boolean).join("\n\n");
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
    $("queue").replaceChildren(...this.queue.map((text, index) => {
      const label = `Take back: ${text.slice(0, 60)}`;
      const drop = el("button", { type: "button", class: "plain icon", "aria-label": label }, "×");
      drop.addEventListener("click", () => {
        this.queue.splice(index, 1);
        this.show();
        this.field.focus();
      });
      return el("li", {}, el("span", {}, text), drop);
    }));
    $("queue").hidden = !this.queue.length;
  }

  fit() {
    this.field.style.height = "auto";
    this.field.style.height = `${this.field.scrollHeight + 2}px`;
  }
}
