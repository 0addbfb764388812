// The page: a chat with a model, and what its drafts are doing.

import { Answer } from "/playground/answer.js";
import { health, models } from "/playground/api.js";
import { showChats } from "/playground/chats.js";
import { Composer } from "/playground/composer.js";
import { add, choose, fork, last, newChat, path, touch } from "/playground/conversation.js";
import { $, announce, eachFrame, el } from "/playground/dom.js";
import { counts, Messages } from "/playground/messages.js";
import { showPlots } from "/playground/plots.js";
import { race } from "/playground/race.js";
import { buildSettings, offer, settings } from "/playground/settings.js";
import * as store from "/playground/store.js";
import { close as closeInspector, colour, ORIGINS, setSources, watchTokens } from "/playground/tokens.js";
import { setUpLooks } from "/playground/looks.js";

const SAVE_EVERY = 3000, LOOK_EVERY = 15000; // ms

let all = []; // models served
let model = null;
let chat = newChat();
let running = null; // the Answer that is being written, or { stop } of a race
let online = false;
let saved = 0;

const busy = () => running !== null;
const shown = () => path(chat);
const lastAnswer = () => shown().filter((node) => node.steps?.length).at(-1) ?? null;

function say(text, bad = false) {
  if ($("state").textContent !== text) $("state").textContent = text;
  $("state").classList.toggle("bad", bad);
}

// -- the server: there, loading, away, back ---------------------------------------------------------------------

async function connect(wait = 1000) {
  try {
    all = await models();
  } catch (error) {
    say(error.kind === "away" ? "server away, reconnecting" : error.message, true);
    setTimeout(() => connect(Math.min(2 * wait, 8000)), wait);
    return;
  }
  if (!all[0].speculation) {
    say("loading the model");
    setTimeout(() => connect(), 1000);
    return;
  }
  useModel(all.find((each) => each.id === (model?.id ?? settings.model)) ?? all[0]);
  online = true;
  say("ready");
  const waiting = shown().at(-1);
  if (waiting?.status === "waiting" && !busy()) write(waiting);
}

function lost() {
  if (!online) return;
  online = false;
  connect();
}

function useModel(chosen) {
  model = chosen;
  setSources(model.speculation.sources);
  offer(model);
  $("model").textContent = model.id;
  $("model").hidden = all.length > 1;
  $("model-choice").hidden = all.length < 2;
  $("model-choice").replaceChildren(...all.map(({ id }) => new Option(id, id, false, id === model.id)));
  drawLegend();
}

setInterval(async () => {
  if (document.hidden || busy() || !online) return;
  if (await health() !== "ok") lost();
}, LOOK_EVERY);

// -- answers ----------------------------------------------------------------------------------------------------

function send(text) {
  add(chat, last(chat).id, { role: "user", content: text });
  answer(last(chat).id);
}

function answer(parent, fields = {}) {
  write(add(chat, parent, { role: "assistant", status: "writing", steps: [], ...fields }));
}

// Writes an answer from its beginning, or from where it was cut.
async function write(node) {
  const own = chat; // another chat may be opened before this answer has ended
  if (!model) {
    Object.assign(node, { status: "waiting" });
    render();
    return;
  }
  node.hint = null;
  running = new Answer(own, node, eachFrame(() => progress(own, node)));
  say("writing");
  render();
  follow(true);
  await running.write(model, settings);
  running = null;
  const away = node.error?.kind === "away";
  if (away && !node.content) Object.assign(node, { status: "waiting", error: null });
  say({ done: "ready", stopped: "stopped", failed: "failed", waiting: "server away" }[node.status], node.status === "failed");
  if (away || node.error?.kind === "broken") lost();
  keep(own);
  if (chat === own) render();
  announce(node.status === "done" ? `Answer: ${node.content.slice(0, 600)}` : node.error?.message ?? node.status);
  composer.next(node.status === "done" && chat === own);
}

function progress(own, node) {
  if (Date.now() - saved > SAVE_EVERY) keep(own);
  if (chat !== own) return;
  const atEnd = isAtEnd();
  messages.update(node);
  drawFigures();
  if (atEnd) follow();
}

const isAtEnd = () => $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 60;

function follow(always = false) {
  if (always || !closeInspector()) $("log").scrollTop = $("log").scrollHeight;
}

const actions = {
  edit: (node, text) => answer(add(chat, node.parent, { role: "user", content: text }).id),
  regenerate(node) {
    const fixed = Number(settings.temperature) === 0 ? "At temperature 0 an answer comes out the same again." : settings.seed !== "" ? "With a fixed seed an answer comes out the same again." : null;
    answer(node.parent, {});
    if (fixed) last(chat).hint = `${fixed} Settings can change that.`;
  },
  goOn: (node) => write(node),
  branch(node) {
    const made = fork(chat, node.id);
    store.save(made);
    open(made.id);
    announce("A new chat goes on from here");
  },
  choose(id) {
    choose(chat, id);
    keep(chat);
    render();
  },
  toolResult: (node, call, text) => answerTool(node, call, text),
};

function answerTool(node, call, text) {
  const given = shown().slice(shown().indexOf(node) + 1).filter((each) => each.role === "tool").map((each) => each.callId);
  const result = add(chat, last(chat).id, { role: "tool", content: text, callId: call.id });
  if (node.calls.every(({ id }) => id === call.id || given.includes(id))) answer(result.id);
  else render();
}

function stop() {
  running?.stop();
}

async function startRace() {
  const question = shown().filter((node) => node.role === "user").at(-1);
  if (busy() || !model) return;
  if (!question) {
    $("race-state").textContent = "Ask something first.";
    return;
  }
  const abort = new AbortController();
  running = { stop: () => abort.abort() };
  say("racing");
  render();
  try {
    await race(model, settings, chat, question.id, abort.signal);
    say("ready");
  } catch (error) {
    const stopped = error.name === "AbortError";
    $("race-state").textContent = stopped ? "Stopped." : error.message;
    say(stopped ? "stopped" : "failed", !stopped);
    if (error.kind === "away" || error.kind === "broken") lost();
  }
  running = null;
  render();
  composer.next(true);
}

// -- chats ------------------------------------------------------------------------------------------------------

function keep(changed) {
  saved = Date.now();
  if (!store.save(changed)) say("this browser has no room for the chat", true);
  drawChats();
}

function open(id) {
  const found = id === running?.chat?.id ? running.chat : store.load(id);
  if (found) show(found);
}

function show(opened) {
  chat = opened;
  composer.clear();
  $("system").value = chat.system;
  render();
  follow(true);
  looks.closeDrawers();
}

function startNew() {
  show(newChat(chat.system));
  $("text").focus();
}

const listActions = {
  open,
  rename(id, title) {
    const changed = id === chat.id ? chat : store.load(id);
    if (changed && changed.title !== title) store.save(Object.assign(changed, { title }));
    drawChats();
  },
  remove(id) {
    if (id === running?.chat?.id) stop();
    store.remove(id);
    if (id === chat.id) startNew();
    drawChats();
  },
};

// -- drawing ----------------------------------------------------------------------------------------------------

function render() {
  closeInspector();
  $("welcome").hidden = shown().length > 0;
  messages.render(chat, shown(), { asTokens: $("token-view").checked, busy: busy() });
  composer.show();
  $("race-start").disabled = busy();
  drawFigures();
  drawChats();
}

function drawChats() {
  if ($("chat-list").contains(document.activeElement) && document.activeElement.tagName === "INPUT") return; // a title is being written
  showChats(store.list(), chat.id, listActions);
}

function drawFigures() {
  showPlots($("plots"), lastAnswer());
  drawLegend();
}

function drawLegend() {
  const found = counts(lastAnswer());
  const bySource = $("by-source").getAttribute("aria-pressed") === "true";
  const rows = bySource
    ? Object.entries(found.source).map(([source, number]) => [colour(source), source === "none" ? "the model itself" : source, number])
    : Object.entries(ORIGINS).map(([origin, words]) => [origin, words, found.origin[origin]]);
  $("legend").replaceChildren(...rows.map(([swatch, words, number]) => el("li", {},
    el("span", { class: `swatch ${swatch}` }), el("span", {}, words), el("span", { class: "count" }, String(number ?? 0)))));
}

// -- the beginning ----------------------------------------------------------------------------------------------

const messages = new Messages($("log"), actions);
const composer = new Composer({ send, stop, isBusy: busy });
const looks = setUpLooks({ onColours: drawLegend, onView: render });

buildSettings($("fields"));
watchTokens($("log"), (container) => ({ chat, model, node: chat.nodes[container.closest("[data-node]").dataset.node] }));
$("new-chat").addEventListener("click", startNew);
$("race-start").addEventListener("click", startRace);
$("model-choice").addEventListener("change", () => {
  settings.model = $("model-choice").value;
  store.saveSettings(settings);
  useModel(all.find(({ id }) => id === settings.model));
});
$("system").addEventListener("change", () => {
  chat.system = $("system").value;
  touch(chat);
  if (shown().length) keep(chat);
});
for (const example of document.querySelectorAll(".example")) {
  example.addEventListener("click", () => composer.send(example.textContent));
}
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.defaultPrevented && !closeInspector() && !looks.closeDrawers()) stop();
});
addEventListener("pagehide", () => { if (shown().length) store.save(chat); });
store.onChange(drawChats);
const [newest] = store.list();
if (newest) open(newest.id);
else render();
connect();
