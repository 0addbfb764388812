// The same answer without and with drafts, several times in turn, and medians. One runs at a time.

import { stream } from "/playground/api.js";
import { asking, newId, path } from "/playground/conversation.js";
import { $, announce, el, median } from "/playground/dom.js";
import { request, speculationOf } from "/playground/request.js";

const LANES = ["plain", "drafted"];
const LENGTH = 256; // tokens of an answer, where the settings have no limit of their own

// What is raced: what stands in the box, else the message that was asked last. { chat, id }, or null.
export function raced(chat) {
  const typed = $("text").value.trim();
  if (typed) return asking(chat, typed);
  const question = path(chat).findLast((node) => node.role === "user");
  if (question) return { chat, id: question.id };
  say("Write a message first; it is not sent.");
  $("text").focus();
  return null;
}

// Runs a race for the answer to the message `id` of a chat, and shows it in the panel. `signal` stops it.
export async function race(model, settings, chat, id, signal) {
  if (settings.draft === "none") throw new Error("Nothing drafts: choose a draft source in Settings first.");
  const repeats = Math.min(20, Math.max(1, Math.trunc(Number($("race-repeats").value)) || 3));
  const cold = $("race-cold").checked;
  const runs = { plain: [], drafted: [] };
  const { path, body } = request(model, { ...settings, max_tokens: settings.max_tokens || LENGTH }, chat, id);
  const speculation = { plain: "off", drafted: speculationOf(settings) };
  for (let round = 0; round < repeats; round += 1) {
    const order = round % 2 ? [...LANES].reverse() : LANES; // what comes second may gain by a warm machine
    for (const lane of order) {
      const asked = { ...body, seed: body.seed ?? 1, stream_options: { include_usage: true } };
      delete asked.speculation;
      if (speculation[lane] !== null) asked.speculation = speculation[lane];
      if (cold) asked.cache_salt = `race ${newId()}`;
      say(`Round ${round + 1} of ${repeats}: ${lane}`);
      runs[lane].push(await one(path, asked, signal, (tokens, seconds) => progress(lane, tokens, seconds)));
      show(runs);
    }
  }
  finish(runs, repeats, cold, settings);
}

async function one(path, body, signal, onProgress) {
  let text = "", end = null, tokens = 0, began = null;
  for await (const chunk of stream(path, body, signal)) {
    const [choice] = chunk.choices;
    if (chunk.timings) end = chunk;
    if (!choice) continue;
    began ??= performance.now();
    text += choice.delta?.content ?? choice.text ?? "";
    text += choice.delta?.tool_calls ? JSON.stringify(choice.delta.tool_calls.map((call) => call.function)) : "";
    onProgress((tokens += 1), (performance.now() - began) / 1000);
  }
  const { timings, metrics } = end;
  return {
    text, perSecond: timings.predicted_per_second ?? 0, tau: metrics.speculative_decoding.mean_acceptance_length ?? 1,
    seconds: (timings.prompt_ms + timings.predicted_ms) / 1000, cached: timings.cache_n, tokens: timings.predicted_n,
  };
}

function say(text) {
  $("race-state").textContent = text;
}

function progress(lane, steps, seconds) {
  $(`race-${lane}-now`).textContent = `${steps} runs, ${seconds.toFixed(1)} s`;
}

function show(runs) {
  $("race-result").hidden = false;
  const most = Math.max(1, ...LANES.flatMap((lane) => runs[lane].map((run) => run.perSecond)));
  for (const lane of LANES) {
    const speeds = runs[lane].map((run) => run.perSecond);
    $(`race-${lane}-now`).textContent = "";
    if (!speeds.length) continue;
    $(`race-${lane}-bar`).style.width = `${(100 * median(speeds)) / most}%`;
    $(`race-${lane}-speed`).textContent = median(speeds).toFixed(0);
    $(`race-${lane}-dots`).replaceChildren(...speeds.map((speed) => {
      const dot = el("span", { class: "dot", title: `${speed.toFixed(1)} tokens/s` });
      dot.style.left = `${(100 * speed) / most}%`;
      return dot;
    }));
  }
}

function finish(runs, repeats, cold, settings) {
  const speeds = Object.fromEntries(LANES.map((lane) => [lane, runs[lane].map((run) => run.perSecond)]));
  const seconds = Object.fromEntries(LANES.map((lane) => [lane, median(runs[lane].map((run) => run.seconds))]));
  const ratio = median(speeds.drafted) / Math.max(1e-9, median(speeds.plain));
  const apart = Math.max(...speeds.plain) < Math.min(...speeds.drafted) || Math.max(...speeds.drafted) < Math.min(...speeds.plain);
  const texts = new Set(LANES.flatMap((lane) => runs[lane].map((run) => run.text)));
  const clear = repeats < 2 ? " One run of each says little." : apart ? "" : " The runs overlap: this is no clear difference.";
  const same = texts.size === 1 ? "the same text each time" : exactness(settings);
  say("");
  $("race-verdict").textContent = `${ratio.toFixed(2)} times plain decoding, ${same}.${clear}`;
  const tau = median(runs.drafted.map((run) => run.tau)).toFixed(2);
  $("race-detail").textContent =
    `Medians of ${repeats}: whole answer ${seconds.plain.toFixed(2)} s plain, ${seconds.drafted.toFixed(2)} s drafted; ` +
    `${tau} tokens per run; ${runs.plain[0].tokens} tokens. ${learned(cold, runs)}`;
  announce($("race-verdict").textContent);
}

function exactness(settings) {
  return settings.verifier && settings.verifier !== "matching"
    ? `other texts, as ${settings.verifier} keeps the distribution at best` : "different texts";
}

function learned(cold, runs) {
  if (cold) return "Learned before: nothing. Every run began with empty caches, for the prompt and for the drafts.";
  const cached = Math.max(...LANES.flatMap((lane) => runs[lane].map((run) => run.cached)));
  return `Learned before: all earlier chats, perhaps this very answer, which favours drafts; up to ${cached} prompt tokens were cached.`;
}
