// The settings form: one table of fields, from which the form is made, saved and read.

import { el } from "/playground/dom.js";
import { loadSettings, saveSettings } from "/playground/store.js";

const SCHEMA = '{"type": "object",\n "properties": {"name": {"type": "string"},\n  "age": {"type": "integer"}},\n "required": ["name", "age"]}';
const TOOLS = `[{"type": "function", "function": {
  "name": "get_weather",
  "description": "The weather in a city",
  "parameters": {"type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"]}}}]`;

const number = (name, label, rest) => ({ name, label, type: "number", ...rest });

// A field that is left empty is not sent: the server's own value holds.
export const GROUPS = [
  { title: "Speculation", fields: [
    { name: "draft", label: "Draft source", type: "select", value: "auto", options: [] },
    { name: "combination", label: "Combination", type: "text", placeholder: "suffix+recycling", hint: "a,b: the first that has something; a/b: the best so far; a+b: one tree of both" },
    number("spec_length", "Draft length K", { min: 1, max: 64, step: 1, placeholder: "auto" }),
    { name: "verifier", label: "Verifier", type: "select", value: "", options: [] },
    { name: "tree", label: "Tree", type: "text", placeholder: "chain", hint: "chain, dynamic, or widths such as 4,2,1" },
    number("tree_nodes", "Tree nodes", { min: 1, max: 64, step: 1 }),
    number("draft_temperature", "Draft temperature", { min: 0, max: 5, step: 0.1 }),
  ] },
  { title: "Sampling", open: true, fields: [
    number("temperature", "Temperature", { min: 0, max: 5, step: 0.1, value: 0, hint: "0: always the likeliest token" }),
    number("max_tokens", "Tokens at most", { min: 1, max: 100000, step: 1, placeholder: "the context" }),
    number("seed", "Seed", { step: 1, placeholder: "random" }),
    number("top_p", "Top p", { min: 0.01, max: 1, step: 0.01, placeholder: "1" }),
    number("top_k", "Top k", { min: 0, max: 100000, step: 1, placeholder: "all" }),
    number("min_p", "Min p", { min: 0, max: 1, step: 0.01, placeholder: "0" }),
    number("repetition_penalty", "Repetition penalty", { min: 0.01, max: 5, step: 0.01, placeholder: "1" }),
    number("presence_penalty", "Presence penalty", { min: -2, max: 2, step: 0.1, placeholder: "0" }),
    number("frequency_penalty", "Frequency penalty", { min: -2, max: 2, step: 0.1, placeholder: "0" }),
    number("min_tokens", "Tokens at least", { min: 0, max: 100000, step: 1, placeholder: "0" }),
    { name: "stop", label: "Stop at", type: "textarea", rows: 1, hint: "texts, one a line" },
    { name: "ignore_eos", label: "Go on after the end of text", type: "checkbox", value: false },
    { name: "more", label: "More fields (JSON)", type: "textarea", rows: 2, placeholder: '{"logit_bias": {"50": 5}}' },
  ] },
  { title: "Form of the answer", fields: [
    { name: "form", label: "Form", type: "select", value: "text", options: [["text", "free text"], ["json_object", "JSON"], ["json_schema", "JSON by a schema"], ["regex", "regular expression"], ["choice", "one of a list"]] },
    { name: "schema", label: "JSON schema", type: "textarea", rows: 5, value: SCHEMA, when: ["form", "json_schema"] },
    { name: "regex", label: "Regular expression", type: "text", value: "[0-9]{4}-[0-9]{2}-[0-9]{2}", when: ["form", "regex"] },
    { name: "choice", label: "Choices", type: "textarea", rows: 3, value: "yes\nno", hint: "one a line", when: ["form", "choice"] },
  ] },
  { title: "Tools", fields: [
    { name: "use_tools", label: "Offer tools to the model", type: "checkbox", value: false },
    { name: "tool_choice", label: "Use of tools", type: "select", value: "auto", options: [["auto", "as the model likes"], ["required", "it must call one"]], when: ["use_tools", true] },
    { name: "tools", label: "Tools (JSON)", type: "textarea", rows: 8, value: TOOLS, when: ["use_tools", true] },
  ] },
];

const FIELDS = GROUPS.flatMap((group) => group.fields);
const DEFAULTS = Object.fromEntries(FIELDS.map((field) => [field.name, field.value ?? ""]));
const PLAIN = ["string", "number", "boolean"];
const stored = Object.entries(loadSettings()).filter(([, value]) => PLAIN.includes(typeof value));
export const settings = Object.assign(Object.create(null), DEFAULTS, Object.fromEntries(stored.map(ofItsKind)));

function ofItsKind([name, value]) {
  const kind = typeof (Object.hasOwn(DEFAULTS, name) ? DEFAULTS[name] : value);
  return [name, kind === "boolean" ? value === true : kind === "string" ? String(value) : value];
}

// Only what differs from its default is kept: a default may change.
export function keepSettings() {
  saveSettings(Object.fromEntries(Object.entries(settings).filter(([name, value]) => value !== DEFAULTS[name])));
}

const shown = new Map(); // field name -> { control, row }

export function buildSettings(container) {
  for (const { title, open, fields } of GROUPS) {
    const rows = fields.map(row);
    container.append(el("details", { class: "group", open }, el("summary", {}, title), el("div", { class: "fields" }, ...rows)));
  }
  showWhen();
}

function row(field) {
  const id = `set-${field.name}`;
  const made = control(field, id);
  made.addEventListener("input", () => change(field.name, field.type === "checkbox" ? made.checked : made.value));
  const hint = field.hint && el("span", { class: "hint", id: `${id}-hint` }, field.hint);
  if (hint) made.setAttribute("aria-describedby", `${id}-hint`);
  const wide = field.type === "textarea" || field.type === "checkbox" ? " wide" : "";
  const label = el("label", { for: id }, field.label);
  const parts = field.type === "checkbox" ? [made, label] : [label, made];
  const whole = el("div", { class: `field ${field.type}${wide}` }, ...parts, hint);
  shown.set(field.name, { control: made, row: whole, field });
  return whole;
}

function control(field, id) {
  const { min, max, step, placeholder, rows } = field;
  const value = settings[field.name];
  if (field.type === "select") return options(el("select", { id }), field.options, value);
  if (field.type === "checkbox") return el("input", { id, type: "checkbox", checked: Boolean(value) });
  if (field.type === "textarea") {
    const area = el("textarea", { id, rows, placeholder, spellcheck: "false" });
    area.value = value;
    return area;
  }
  const mode = field.type === "number" ? "decimal" : null;
  return el("input", { id, type: field.type, min, max, step, placeholder, inputmode: mode, value, autocomplete: "off" });
}

function options(select, entries, value) {
  select.replaceChildren(...entries.map(([name, label]) => new Option(label, name, false, name === value)));
  return select;
}

function change(name, value) {
  settings[name] = value;
  keepSettings();
  showWhen();
}

// Hides the fields that have no meaning beside the others.
function showWhen() {
  for (const { row: whole, field } of shown.values()) {
    if (field.when) whole.hidden = settings[field.when[0]] !== field.when[1];
  }
  if (shown.has("combination")) shown.get("combination").row.hidden = settings.draft !== "several";
}

// What a model that is not loaded offers is not known: what is chosen stays.
const unknown = () => ({
  sources: [settings.draft].filter((name) => !["auto", "several"].includes(name)),
  verifiers: [settings.verifier].filter(Boolean),
  draft: "as served", verifier: "as served", spec_length: "auto",
});

// What answers may be drafted by: names, and words for them.
export function sourcesOf(model) {
  const { sources, draft } = model?.speculation ?? unknown();
  return [["none", "no drafts"], ["auto", `auto (${draft})`], ...sources.filter((name) => name !== "none").map((name) => [name, name])];
}

// What a model offers: "auto" is whatever the server was started with.
export function offer(model) {
  const { verifiers, draft, verifier, spec_length: length } = model.speculation ?? unknown();
  const [, , ...sources] = sourcesOf(model);
  const entries = [["auto", `auto (${draft})`], ["none", "none: plain decoding"], ...sources, ["several", "several…"]];
  choose("draft", entries, "auto");
  choose("verifier", [["", `auto (${verifier})`], ...verifiers.map((name) => [name, name])], "");
  shown.get("spec_length").control.placeholder = String(length);
  const takesTools = model.takes_tools ?? true;
  shown.get("use_tools").control.disabled = !takesTools;
  shown.get("use_tools").row.title = takesTools ? "" : "This model's chat template knows no tools.";
}

function choose(name, entries, fallback) {
  const { control: select } = shown.get(name);
  const known = entries.some(([value]) => value === settings[name]);
  if (!known) settings[name] = fallback;
  options(select, entries, settings[name]);
  showWhen();
}
