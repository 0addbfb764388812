// The page: a conversation whose tokens show where they came from, and what speculation won.

import { models, stream } from "/playground/stream.js";

const $ = (id) => document.getElementById(id);
const ORIGINS = {
  accepted: "accepted: drafted, and kept",
  recovered: "recovered: in place of a refused draft",
  bonus: "bonus: after a draft kept whole",
  target: "plain: nothing was drafted",
};
const COLOURS = 6;

const state = { model: null, messages: [], running: null, counts: {}, sources: [] };

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function say(text, bad = false) {
  $("state").textContent = text;
  $("state").classList.toggle("bad", bad);
}

async function connect() {
  try {
    [state.model] = await models();
  } catch (error) {
    say(error.message, true);
    setTimeout(connect, 2000);
    return;
  }
  if (!state.model.speculation) {
    say("loading the model");
    setTimeout(connect, 1000);
    return;
  }
  const { sources, verifiers, draft, spec_length: length, verifier } = state.model.speculation;
  state.sources = sources;
  fill($("draft"), sources, draft === "none" ? sources.find((s) => s !== "none") : draft);
  fill($("verifier"), verifiers, verifier);
  $("length").value = length === "auto" ? 0 : length;
  $("model").textContent = state.model.id;
  say("ready");
  showOutputs();
  showLegend();
}

function fill(select, names, chosen) {
  select.replaceChildren(...names.map((name) => new Option(name, name, false, name === chosen)));
}

function showOutputs() {
  $("length-out").textContent = draftLength();
  $("temperature-out").textContent = Number($("temperature").value).toFixed(1);
}

// -- one turn ---------------------------------------------------------------------------------------------------

function options(speculation) {
  return {
    model: state.model.id,
    max_tokens: Math.max(1, Math.trunc(Number($("max-tokens").value)) || 160),
    temperature: Number($("temperature").value),
    seed: Math.trunc(Number($("seed").value)) || 0,
    speculation,
    token_details: true,
    stream_options: { include_usage: true },
  };
}

function chosen() {
  const draft = $("draft").value;
  if (draft === "none") return "off";
  return { draft, spec_length: draftLength(), verifier: $("verifier").value };
}

// The slider's left end leaves the length to the engine.
function draftLength() {
  return Number($("length").value) || "auto";
}

async function run(messages, speculation, onTokens, signal) {
  const chat = state.model.has_chat_template;
  const body = chat ? { messages } : { prompt: messages.map((m) => m.content).join("\n") };
  const path = chat ? "/v1/chat/completions" : "/v1/completions";
  let text = "", last = null;
  for await (const chunk of stream(path, { ...options(speculation), ...body }, signal)) {
    const [choice] = chunk.choices;
    if (choice) {
      text += (chat ? choice.delta.content : choice.text) || "";
      if (choice.token_details?.length) onTokens(choice.token_details);
    } else {
      last = chunk;
    }
  }
  return { text, metrics: last.metrics.speculative_decoding, timings: last.timings };
}

async function turn(content) {
  $("welcome").hidden = true;
  const { messages } = state; // a new chat may begin before this turn has ended
  messages.push({ role: "user", content });
  $("log").append(element("div", "message user", content));
  const message = element("div", "message assistant");
  const text = element("div", "text");
  message.append(text);
  $("log").append(message);
  state.running = new AbortController();
  $("send").textContent = "Stop";
  say("writing");
  try {
    await write([...messages], text, message, (answer) => messages.push({ role: "assistant", content: answer }));
    say("ready");
  } catch (error) {
    const stopped = error.name === "AbortError";
    say(stopped ? "stopped" : error.message, !stopped);
    if (!stopped) message.append(element("p", "note error", error.message));
    if (messages.at(-1).role === "user") messages.push({ role: "assistant", content: text.textContent || "…" });
  } finally {
    state.running = null;
    $("send").textContent = "Send";
  }
}

async function write(messages, text, message, keep) {
  const speculation = chosen();
  const live = new Live(text);
  $("race").hidden = true;
  const { signal } = state.running;
  const answer = await run(messages, speculation, (tokens) => live.show(tokens), signal);
  keep(answer.text);
  showMetrics(answer);
  message.append(element("p", "note quiet", summary(answer, speculation)));
  follow();
  if (speculation !== "off" && $("compare").checked) {
    say("comparing");
    showRace(answer, await run(messages, "off", () => {}, signal));
  }
}

// Shows tokens as they come, and what can be known while they do.
class Live {
  constructor(text) {
    this.text = text;
    this.steps = 0;
    this.tokens = 0;
    state.counts = { origin: {}, source: {} };
  }

  show(tokens) {
    this.began ??= performance.now();
    for (const token of tokens) {
      const source = token.origin === "accepted" ? token.source : "none";
      const span = element("span", `tok ${token.origin} ${colour(source)}`, token.text);
      span.title = `${ORIGINS[token.origin]}${token.source === "none" ? "" : ` · ${token.source}`} · token ${token.id}`;
      this.text.append(span);
      count(state.counts.origin, token.origin);
      count(state.counts.source, source);
    }
    this.steps += 1;
    this.tokens += tokens.length;
    const seconds = (performance.now() - this.began) / 1000;
    if (seconds > 0.05) $("speed").textContent = (this.tokens / seconds).toFixed(0);
    $("tau").textContent = (this.tokens / this.steps).toFixed(2);
    showLegend();
    follow();
  }
}

function count(counts, key) {
  counts[key] = (counts[key] ?? 0) + 1;
}

function colour(source) {
  const index = state.sources.indexOf(source) - 1;
  return index < 0 ? "" : `s${index % COLOURS}`;
}

function follow() {
  const log = $("log");
  log.scrollTop = log.scrollHeight;
}

// -- figures ----------------------------------------------------------------------------------------------------

const perSecond = (timings) => timings.predicted_per_second ?? 0;
const percent = (share) => (share === null ? "–" : `${Math.round(100 * share)}%`);

function summary({ metrics, timings }, speculation) {
  const line = `${timings.predicted_n} tokens, ${perSecond(timings).toFixed(0)} tokens/s`;
  if (speculation === "off") return `${line}, plain`;
  const { draft, spec_length: length } = speculation;
  return `${line} · ${draft}, K=${length}: ${metrics.num_accepted_draft_tokens} of ${metrics.num_draft_tokens} drafts accepted`;
}

function showMetrics({ metrics, timings }) {
  $("speed").textContent = perSecond(timings).toFixed(0);
  $("tau").textContent = (metrics.mean_acceptance_length ?? 1).toFixed(2);
  $("rate").textContent = percent(metrics.draft_acceptance_rate);
  const columns = metrics.acceptance_by_position.map((share, index) => {
    const position = element("div", "position");
    const column = element("div", "column");
    const bar = element("div", "fill");
    bar.style.height = `${100 * share}%`;
    column.append(bar);
    position.append(element("span", "", percent(share)), column, element("span", "", String(index + 1)));
    return position;
  });
  const nothing = element("p", "quiet", "Nothing was drafted.");
  $("positions").replaceChildren(...(columns.length ? columns : [nothing]));
}

function showRace(drafted, plain) {
  const [fast, slow] = [perSecond(drafted.timings), perSecond(plain.timings)];
  const most = Math.max(fast, slow, 1);
  $("with-bar").style.width = `${(100 * fast) / most}%`;
  $("without-bar").style.width = `${(100 * slow) / most}%`;
  $("with-speed").textContent = fast.toFixed(0);
  $("without-speed").textContent = slow.toFixed(0);
  const same = drafted.text === plain.text ? "the same text" : "another text";
  $("verdict").textContent = `${(fast / Math.max(slow, 1e-9)).toFixed(2)} times plain decoding, ${same}`;
  $("race").hidden = false;
}

function showLegend() {
  const bySource = $("by-source").getAttribute("aria-pressed") === "true";
  const counts = (bySource ? state.counts.source : state.counts.origin) ?? {};
  const rows = bySource
    ? state.sources.map((source) => [colour(source), source === "none" ? "the model itself" : source, counts[source]])
    : Object.entries(ORIGINS).map(([origin, words]) => [origin, words, counts[origin]]);
  $("legend").replaceChildren(...rows.map(([swatch, words, number]) => {
    const row = element("li");
    row.append(element("span", `swatch ${swatch}`), element("span", "", words), element("span", "count", String(number ?? 0)));
    return row;
  }));
}

function colourBy(key) {
  for (const name of ["origin", "source"]) {
    $(`by-${name}`).setAttribute("aria-pressed", String(name === key));
    $("log").classList.toggle(`by-${name}`, name === key);
  }
  showLegend();
}

// -- events -----------------------------------------------------------------------------------------------------

function submit(event) {
  event?.preventDefault();
  if (state.running) {
    state.running.abort();
    return;
  }
  const content = $("text").value.trim();
  if (!content || !state.model?.speculation) return;
  $("text").value = "";
  turn(content);
}

$("form").addEventListener("submit", submit);
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
});
$("clear").addEventListener("click", () => {
  state.running?.abort();
  state.messages = [];
  $("log").replaceChildren($("welcome"));
  $("welcome").hidden = false;
});
for (const example of document.querySelectorAll(".example")) {
  example.addEventListener("click", () => {
    $("text").value = example.textContent;
    submit();
  });
}
$("length").addEventListener("input", showOutputs);
$("temperature").addEventListener("input", showOutputs);
$("by-origin").addEventListener("click", () => colourBy("origin"));
$("by-source").addEventListener("click", () => colourBy("source"));
if (window.matchMedia("(max-width: 56rem)").matches) $("settings").open = false;
colourBy("origin");
connect();
