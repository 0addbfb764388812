// System prompts by name, kept in this browser: chosen for a chat, saved, removed, taken out and brought in.

import { $, announce } from "/playground/dom.js";
import { loadPrompts, savePrompts } from "/playground/store.js";
import { download } from "/playground/transfer.js";

const GIVEN = {
  "Short and plain": "Answer in as few plain sentences as the question needs.",
  "Careful reviewer": "You review code. Name each defect, say why it is one, and show the corrected lines. Do not praise.",
  "Only from the file": "Answer only from the attached file. Quote the passage you rely on. If the file does not say it, say so.",
};

// `use(text)`: the chat's system prompt becomes it.
export function setUpPrompts(use) {
  draw();
  $("prompt-choice").addEventListener("change", () => {
    const text = all()[$("prompt-choice").value];
    if (text === undefined) return;
    $("system").value = text;
    use(text);
    $("prompt-remove").disabled = false;
  });
  $("system").addEventListener("input", () => say(""));
  $("prompt-save").addEventListener("click", startSaving);
  $("prompt-name-form").addEventListener("submit", (event) => {
    event.preventDefault();
    save();
  });
  $("prompt-remove").addEventListener("click", remove);
  $("prompt-export").addEventListener("click", () => download("system-prompts.json", JSON.stringify(all(), null, 1), "application/json"));
  $("prompt-import").addEventListener("click", () => $("prompt-file").click());
  $("prompt-file").addEventListener("change", bringIn);
}

// Shows which of the prompts the chat has.
export function showPrompt(text) {
  const name = Object.entries(all()).find(([, each]) => each === text.trim())?.[0] ?? "";
  $("prompt-choice").value = name;
  $("prompt-remove").disabled = !name;
}

// What a name stands for is a text; nothing else that was stored counts.
function all() {
  const kept = loadPrompts();
  return kept === null ? { ...GIVEN } : texts(kept);
}

function texts(found) {
  const entries = typeof found === "object" && found !== null && !Array.isArray(found) ? Object.entries(found) : [];
  return Object.fromEntries(entries.filter(([name, text]) => name.trim() && typeof text === "string").map(([name, text]) => [name.slice(0, 60), text]));
}

function draw(chosen = "") {
  const names = Object.keys(all()).sort((a, b) => a.localeCompare(b));
  $("prompt-choice").replaceChildren(new Option("saved prompts…", ""), ...names.map((name) => new Option(name, name)));
  $("prompt-choice").value = chosen;
  $("prompt-remove").disabled = !chosen;
}

function startSaving() {
  if (!$("system").value.trim()) {
    say("Write a system prompt first.");
    $("system").focus();
    return;
  }
  $("prompt-name-form").hidden = false;
  $("prompt-name").value = $("prompt-choice").value;
  $("prompt-name").focus();
}

function save() {
  const name = $("prompt-name").value.trim();
  if (!name) return;
  keep({ ...all(), [name]: $("system").value.trim() }, name, `Saved as “${name}”.`);
  $("prompt-name-form").hidden = true;
  $("prompt-choice").focus();
}

function remove() {
  const name = $("prompt-choice").value;
  const { [name]: gone, ...rest } = all();
  if (gone === undefined) return;
  keep(rest, "", `“${name}” is removed; the chat keeps its text.`);
  $("prompt-choice").focus();
}

async function bringIn() {
  const [file] = $("prompt-file").files;
  $("prompt-file").value = "";
  if (!file) return;
  try {
    const found = texts(JSON.parse(await file.text()));
    const count = Object.keys(found).length;
    if (!count) throw new Error("none");
    keep({ ...all(), ...found }, "", `${count} prompts came in.`);
  } catch {
    say('The file holds no prompts: it must be a JSON object such as {"name": "text"}.');
  }
}

function keep(prompts, chosen, words) {
  say(savePrompts(prompts) ? words : "This browser has no room for it.");
  draw(chosen);
}

function say(text) {
  $("prompt-state").textContent = text;
  if (text) announce(text);
}
