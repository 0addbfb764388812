// The page: a chat with a model, and what its drafts are doing.

import { Answer } from "/playground/answer.js";
import { showChats } from "/playground/chats.js";
import { Composer } from "/playground/composer.js";
import { Connection, say } from "/playground/connection.js";
import { add, choose, fork, last, newChat, path, touch } from "/playground/conversation.js";
import { $, announce, eachFrame } from "/playground/dom.js";
import { drawLegend } from "/playground/legend.js";
import { setUpLooks } from "/playground/looks.js";
import { Messages } from "/playground/messages.js";
import { showPlots } from "/playground/plots.js";
import { race, raced } from "/playground/race.js";
import { sameAgain } from "/playground/request.js";
import { buildSettings, offer, settings } from "/playground/settings.js";
import * as store from "/playground/store.js";
import { close as closeInspector, watchTokens } from "/playground/tokens.js";

const SAVE_EVERY = 3000; // ms

let chat = newChat();
let running = null; // the Answer that is being written, or { stop } of a race
let saved = 0;
const removed = new Set(); // chats that must not come back, although an answer may still be written
let leaving = false; // the page is: what breaks off now has been stopped by the user

const busy = () => running !== null;
const shown = () => path(chat);
const lastAnswer = () => shown().filter((node) => node.steps?.length).at(-1) ?? null;

// -- answers ----------------------------------------------------------------------------------------------------

function send(text) {
  add(chat, last(chat).id, { role: "user", content: text });
  answer(last(chat).id);
}

function answer(parent, fields = {}) {
  write(add(chat, parent, { role: "assistant", status: "writing", steps: [], ...fields }));
}

function onReady() {
  const waiting = shown().at(-1);
  if (waiting?.status === "waiting" && !busy()) write(waiting);
  drawLegend(lastAnswer());
}

// Writes an answer from its beginning, or from where it was cut.
async function write(node) {
  const own = chat; // another chat may be opened before this answer has ended
  if (!server.model) {
    Object.assign(node, { status: "waiting" });
    render();
    return;
  }
  node.hint = null;
  running = new Answer(own, node, eachFrame(() => progress(own, node)));
  say("writing");
  render();
  follow(true);
  await running.write((signal) => server.prepared(signal), settings);
  running = null;
  if (leaving) Object.assign(node, { status: "stopped", error: null });
  const away = node.error?.kind === "away";
  if (away && !node.content) Object.assign(node, { status: "waiting", error: null });
  say({ done: "ready", stopped: "stopped", failed: "failed", waiting: "server away" }[node.status], node.status === "failed");
  if (away || node.error?.kind === "broken") server.lost();
  keep(own);
  if (chat === own) render();
  if (node.status !== "failed") announce(node.status === "done" ? `Answer: ${node.content.slice(0, 600)}` : node.status); // errors are alerts
  composer.next(node.status === "done" || chat !== own); // what waits is for the chat that is shown
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
    answer(node.parent, {});
    last(chat).hint = sameAgain(settings);
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
  const question = busy() || !server.model ? null : raced(chat);
  if (!question) return;
  const abort = new AbortController();
  running = { stop: () => abort.abort() };
  say("racing");
  render();
  try {
    await race(await server.prepared(abort.signal), settings, question.chat, question.id, abort.signal);
    say("ready");
  } catch (error) {
    const stopped = error.name === "AbortError";
    $("race-state").textContent = stopped ? "Stopped." : error.message;
    say(stopped ? "stopped" : "failed", !stopped);
    if (error.kind === "away" || error.kind === "broken") server.lost();
  }
  running = null;
  render();
  composer.next(true);
}

// -- chats ------------------------------------------------------------------------------------------------------

function keep(changed) {
  if (removed.has(changed.id)) return;
  saved = Date.now();
  if (!store.save(changed)) say("this browser has no room for the chat", true);
  drawChats();
}

// What was stored may be of another time, or damaged; the page works all the same.
function open(id) {
  const before = chat;
  try {
    const opened = find(id);
    if (!opened) throw new Error("no chat");
    show(opened);
  } catch {
    show(before.id === id ? newChat() : before);
    say("that chat cannot be read", true);
  }
}

const find = (id) => [chat, running?.chat].find((each) => each?.id === id) ?? store.load(id);

function show(opened) {
  chat = opened;
  composer.clear();
  $("system").value = chat.system;
  render();
  drawChats(true);
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
    const changed = find(id);
    if (changed && changed.title !== title) store.save(Object.assign(changed, { title }));
    drawChats(true);
  },
  remove(id) {
    removed.add(id);
    if (id === running?.chat?.id) stop();
    store.remove(id);
    if (id === chat.id) startNew();
    drawChats(true);
  },
};

// -- drawing ----------------------------------------------------------------------------------------------------

function render() {
  closeInspector();
  $("welcome").hidden = shown().length > 0;
  messages.render(chat, shown(), { asTokens: $("token-view").checked, busy: busy(), named: server.models.length > 1 });
  composer.show();
  $("race-start").disabled = busy();
  drawFigures();
  drawChats();
}

// Not while a title is written or a deletion is asked about, unless that is what has ended.
function drawChats(ended = false) {
  if (!ended && $("chat-list").querySelector("input, .chat-title")) return;
  showChats(store.list(), chat.id, listActions);
}

function drawFigures() {
  showPlots($("plots"), lastAnswer());
  drawLegend(lastAnswer());
}

// -- the beginning ----------------------------------------------------------------------------------------------

const messages = new Messages($("log"), actions);
const composer = new Composer({ send, stop, isBusy: busy });
const server = new Connection({ onReady, isBusy: busy });
const looks = setUpLooks({ onColours: () => drawLegend(lastAnswer()), onView: render });

buildSettings($("fields"));
watchTokens($("log"), (container) => ({ chat, model: server.model, node: chat.nodes[container.closest("[data-node]").dataset.node] }));
$("new-chat").addEventListener("click", startNew);
$("race-start").addEventListener("click", startRace);
$("system").addEventListener("change", () => {
  chat.system = $("system").value;
  touch(chat);
  if (shown().length) keep(chat);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.defaultPrevented && !closeInspector() && !looks.closeDrawers()) stop();
});
addEventListener("beforeunload", () => {
  leaving = true;
  setTimeout(() => { leaving = false; }, 1000);
});
addEventListener("pagehide", () => {
  for (const each of new Set([chat, running?.chat])) if (each && path(each).length) keep(each);
});
store.onChange(() => drawChats());
const [newest] = store.list();
if (newest) open(newest.id);
else render();
server.connect();
