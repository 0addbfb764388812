// The files that wait beside the message box: chosen, dropped or pasted, and taken back.

import { $, announce, button, el } from "/playground/dom.js";
import { FileError, readFile, size, thumbnail } from "/playground/files.js";

const MOST = 8;

export class Attachments {
  // `model()`: the model that will read them.
  constructor(model) {
    Object.assign(this, { model, files: [], reading: 0 });
    $("attach").addEventListener("click", () => $("files").click());
    $("files").addEventListener("change", () => {
      this.add($("files").files);
      $("files").value = "";
    });
    $("text").addEventListener("paste", (event) => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      this.add(event.clipboardData.files);
    });
    const zone = document.querySelector(".chat");
    const over = (event) => {
      if (![...event.dataTransfer.types].includes("Files")) return;
      event.preventDefault();
      zone.classList.toggle("dropping", event.type === "dragover");
    };
    zone.addEventListener("dragover", over);
    zone.addEventListener("dragleave", over);
    zone.addEventListener("drop", (event) => {
      over(event);
      if (event.dataTransfer.files.length) this.add(event.dataTransfer.files);
    });
  }

  get isReading() {
    return this.reading > 0;
  }

  async add(files) {
    this.say("");
    const given = [...files].slice(0, Math.max(0, MOST - this.files.length));
    if (given.length < files.length) this.say(`A message takes at most ${MOST} files.`);
    this.reading += 1;
    this.show();
    for (const file of given) {
      try {
        this.files.push(await readFile(file, this.model()));
        announce(`${file.name} is attached`);
      } catch (error) {
        this.say(error instanceof FileError ? error.message : `${file.name} cannot be read.`);
      }
    }
    this.reading -= 1;
    this.show();
    $("text").focus();
  }

  take() {
    const taken = this.files;
    this.give([]);
    return taken;
  }

  give(files) {
    this.files = files;
    this.say("");
    this.show();
  }

  say(text) {
    $("attach-problem").textContent = text;
    $("attach-problem").hidden = !text;
  }

  show() {
    const rows = this.files.map((file, index) => {
      const drop = button("×", () => {
        this.files.splice(index, 1);
        this.show();
        $("text").focus();
      }, { class: "plain icon", "aria-label": `Take back: ${file.name}` });
      return el("li", { class: "chip" }, file.kind === "image" ? thumbnail(file, 36) : null, el("span", {}, label(file)), drop);
    });
    if (this.isReading) rows.push(el("li", { class: "chip quiet" }, "Reading…"));
    $("attached").replaceChildren(...rows);
    $("attached").hidden = !rows.length;
  }
}

const label = (file) => (file.kind === "image" ? file.name : `${file.name} · ${[file.note, size(file.text)].filter(Boolean).join(", ")}`);

// The files of a message that was sent.
export function shownFiles(files) {
  return el("div", { class: "sent-files" }, ...files.map((file) => (file.kind === "image" ? thumbnail(file, 160)
    : el("details", { class: "sent-file" }, el("summary", {}, label(file)),
      el("pre", { tabindex: "0", "aria-label": `The text of ${file.name}` }, el("code", {}, file.text))))));
}
