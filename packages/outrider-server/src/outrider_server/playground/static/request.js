// Settings as a request: what is left empty is left out, so that the server's own value holds.

import { asMessages, newId } from "/playground/conversation.js";

const NUMBERS = [
  "temperature", "max_tokens", "seed", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
  "frequency_penalty", "min_tokens",
];
const DRAFT_NUMBERS = ["spec_length", "tree_nodes", "draft_temperature"];

// Why another answer will be no other one, or null.
export function sameAgain({ temperature, seed }) {
  const why = Number(temperature) === 0 ? "At temperature 0" : seed !== "" ? "With a fixed seed" : null;
  return why && `${why} an answer comes out the same again. Settings can change that.`;
}

export class SettingsError extends Error {}

// { path, body }; `open`: the last message is an answer to go on with.
export function request(model, settings, chat, id, { open = false } = {}) {
  const common = { model: model.id, ...sampling(settings), ...form(settings), ...more(settings) };
  const speculation = speculationOf(settings);
  if (speculation !== null) common.speculation = speculation;
  if (settings.cold) common.cache_salt = `again ${newId()}`; // drafts that have seen the answer would not be compared fairly
  const messages = asMessages(chat, id);
  if (!model.has_chat_template) {
    if (messages.some(({ content }) => typeof content !== "string")) throw new SettingsError("This model has no chat template, and so takes no pictures.");
    const prompt = messages.map((message) => message.content).join("\n") + (open ? "" : "\n");
    return { path: "/v1/completions", body: { max_tokens: model.max_model_len, ...common, prompt } }; // its own default is 16
  }
  const body = { ...common, messages, ...(open ? { continue_final_message: true } : tools(model, settings)) };
  return { path: "/v1/chat/completions", body };
}

function numbers(settings, names) {
  const given = names.filter((name) => settings[name] !== "" && Number.isFinite(Number(settings[name])));
  return Object.fromEntries(given.map((name) => [name, Number(settings[name])]));
}

function sampling(settings) {
  const stop = lines(settings.stop);
  return {
    ...numbers(settings, NUMBERS),
    ...(stop.length ? { stop } : {}),
    ...(settings.ignore_eos ? { ignore_eos: true } : {}),
  };
}

// null: nothing is said of drafts, and the server's default drafts.
export function speculationOf(settings) {
  if (settings.draft === "none") return "off";
  const asked = numbers(settings, DRAFT_NUMBERS);
  if (settings.draft === "several") asked.draft = settings.combination.trim();
  else if (settings.draft !== "auto") asked.draft = settings.draft;
  if (settings.verifier) asked.verifier = settings.verifier;
  if (settings.tree.trim()) asked.tree = settings.tree.trim();
  return Object.keys(asked).length ? asked : null;
}

function form(settings) {
  switch (settings.form) {
    case "json_object": return { response_format: { type: "json_object" } };
    case "json_schema": {
      const schema = parsed(settings.schema, "The JSON schema");
      return { response_format: { type: "json_schema", json_schema: { name: "answer", schema } } };
    }
    case "regex": return { structured_outputs: { regex: settings.regex } };
    case "choice": return { structured_outputs: { choice: lines(settings.choice) } };
    default: return {};
  }
}

function tools(model, settings) {
  if (!settings.use_tools || !model.takes_tools) return {};
  return { tools: parsed(settings.tools, "The list of tools"), tool_choice: settings.tool_choice };
}

function more(settings) {
  return settings.more.trim() ? parsed(settings.more, "What stands under “More fields”") : {};
}

function parsed(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SettingsError(`${what} is not JSON (${error.message}): mend it in Settings.`);
  }
}

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
