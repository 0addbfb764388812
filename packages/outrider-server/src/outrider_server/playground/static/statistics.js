// What the server does, for who runs it: /metrics, read every few seconds. Only those see it who may read /metrics.

import { text } from "/playground/api.js";
import { $, el, percent } from "/playground/dom.js";
import { by, parse, quantile, value } from "/playground/prometheus.js";

const EVERY = 3000; // ms
let key = ""; // of --metrics-key; kept nowhere but here
let before = null;

async function refresh() {
  try {
    const metrics = parse(await text("/metrics", key ? { Authorization: `Bearer ${key}` } : {}));
    show(metrics, performance.now());
    say(`read at ${new Date().toLocaleTimeString()}`);
  } catch (error) {
    const refused = error.status === 403 || error.status === 401;
    say(refused ? "not allowed" : error.message, true);
    $("key-form").hidden = !refused;
    $("figures").hidden = refused;
    if (refused) {
      $("key-note").textContent = key ? "That key may not read these figures." : error.message;
      return; // there is no use in asking again with the same key
    }
  }
  setTimeout(refresh, EVERY);
}

function say(words, bad = false) {
  $("state").textContent = words;
  $("state").classList.toggle("bad", bad);
}

function show(metrics, now) {
  $("key-form").hidden = true;
  $("figures").hidden = false;
  const made = value(metrics, "generation_tokens_total");
  const rate = before && now > before.now ? (1000 * (made - before.made)) / (now - before.now) : null;
  before = { now, made };
  tiles("requests", [
    ["running", value(metrics, "num_requests_running")],
    ["waiting", value(metrics, "num_requests_waiting")],
    ["being answered", value(metrics, "http_requests_in_progress")],
    ["refused, queue full", value(metrics, "requests_rejected_total")],
    ["tokens/s now", rate === null ? "–" : rate.toFixed(0)],
    ["tokens made", made],
  ]);
  table("ended", ["sequences ended by", "count"], entries(by(metrics, "request_success_total", "finished_reason")));
  table("status", ["HTTP status", "count"], entries(by(metrics, "http_requests_total", "status")));
  table("times", ["seconds", "median", "95%"], [
    ["in the queue", "request_queue_time_seconds"], ["to the first token", "time_to_first_token_seconds"],
    ["for each further token", "inter_token_latency_seconds"], ["whole answer", "e2e_request_latency_seconds"],
  ].map(([label, name]) => [label, seconds(quantile(metrics, name, 0.5)), seconds(quantile(metrics, name, 0.95))]));
  const looked = value(metrics, "prefix_cache_queries_total");
  tiles("cache", [
    ["of the cache in use", percent(value(metrics, "kv_cache_usage_perc"))],
    ["of prompt tokens found in it", looked ? percent(value(metrics, "prefix_cache_hits_total") / looked) : "–"],
    ["prompt tokens", value(metrics, "prompt_tokens_total")],
    ["times memory was short", value(metrics, "num_preemptions_total")],
  ]);
  sources(metrics);
}

function sources(metrics) {
  const drafts = by(metrics, "spec_decode_num_drafts_total", "source");
  const drafted = by(metrics, "spec_decode_num_draft_tokens_total", "source");
  const accepted = by(metrics, "spec_decode_num_accepted_tokens_total", "source");
  const rows = [...drafts].sort((a, b) => b[1] - a[1]).map(([source, count]) => {
    const [tokens, kept] = [drafted.get(source) ?? 0, accepted.get(source) ?? 0];
    return [source, number(count), number(tokens), number(kept), tokens ? percent(kept / tokens) : "–", count ? (kept / count).toFixed(2) : "–"];
  });
  table("sources", ["draft source", "drafts", "tokens", "accepted", "rate", "each"], rows);
  const busy = value(metrics, "engine_busy_seconds_total");
  const share = busy ? percent(value(metrics, "spec_decode_draft_seconds_total") / busy) : "–";
  const steps = value(metrics, "engine_steps_total");
  tiles("engine", [["of busy time spent drafting", share], ["steps", steps], ["tokens per step", steps ? (value(metrics, "generation_tokens_total") / steps).toFixed(2) : "–"]]);
}

const entries = (map) => [...map].map(([name, count]) => [name, number(count)]);
const number = (count) => (typeof count === "number" ? count.toLocaleString("en") : count);
const seconds = (time) => (time === null ? "–" : time < 0.1 ? `${(1000 * time).toFixed(1)} ms` : `${time.toFixed(2)} s`);

function tiles(id, values) {
  $(id).replaceChildren(...values.map(([label, figure]) =>
    el("div", { class: "tile" }, el("dt", { class: "label" }, label), el("dd", { class: "figure" }, number(figure)))));
}

function table(id, head, rows) {
  const body = rows.length ? rows : [["nothing yet", ...head.slice(1).map(() => "")]];
  $(id).replaceChildren(
    el("thead", {}, el("tr", {}, ...head.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...body.map(([name, ...cells]) => el("tr", {}, el("th", { scope: "row" }, name), ...cells.map((cell) => el("td", {}, cell))))));
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").value;
  $("key").value = "";
  refresh();
});
refresh();
