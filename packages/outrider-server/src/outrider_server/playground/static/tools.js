// Calls of tools: shown with their arguments, and a form for what the tool would answer.

import { el } from "/playground/dom.js";

// `answer(call, text)` is called when somebody gives a tool's result; null where the calls are answered already.
export function toolCards(calls, answer) {
  return calls.map((call) => {
    const { name, arguments: text } = call.function;
    const card = el("div", { class: "tool" },
      el("p", { class: "tool-name" }, `Calls ${name}`),
      el("pre", { tabindex: "0", "aria-label": `arguments of ${name}` }, el("code", {}, pretty(text))));
    if (answer) card.append(form(call, answer));
    return card;
  });
}

function form(call, answer) {
  const id = `result-${call.id}`;
  const field = el("textarea", { id, rows: "2", placeholder: '{"temperature": 21}' });
  const made = el("form", { class: "tool-result" },
    el("label", { for: id }, `What ${call.function.name} answers`), field, el("button", { type: "submit" }, "Give result"));
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    answer(call, field.value);
  });
  return made;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
