// The page: a chat with a model, and what its drafts are doing.

import { Answer } from "/playground/answer.js";
import { Attachments } from "/playground/attachments.js";
import { Composer } from "/playground/composer.js";
import { Connection, say } from "/playground/connection.js";
import { add, choose, fork, last, path, touch } from "/playground/conversation.js";
import { Desk } from "/playground/desk.js";
import { $, announce, copy, eachFrame } from "/playground/dom.js";
import { setUpKeys } from "/playground/keys.js";
import { drawLegend } from "/playground/legend.js";
import { setUpLooks } from "/playground/looks.js";
import { Messages } from "/playground/messages.js";
import { showPlots } from "/playground/plots.js";
import { setUpPrompts, showPrompt } from "/playground/prompts.js";
import { race, raced } from "/playground/race.js";
import { sameAgain } from "/playground/request.js";
import { buildSettings, settings, sourcesOf } from "/playground/settings.js";
import * as store from "/playground/store.js";
import { close as closeInspector, watchTokens } from "/playground/tokens.js";

const SAVE_EVERY = 3000; // ms

let running = null; // the Answer that is being written, or { stop } of a race
let leaving = false; // the page is: what breaks off now has been stopped by the user

const busy = () => running !== null;
const shown = () => path(desk.chat);
const lastOf = (role) => shown().findLast((node) => node.role === role) ?? null;
const lastAnswer = () => shown().filter((node) => node.steps?.length).at(-1) ?? null;

// -- answers ----------------------------------------------------------------------------------------------------

function send(text, files = []) {
  const { chat } = desk;
  add(chat, last(chat).id, { role: "user", content: text, ...(files.length ? { files } : {}) });
  answer(last(chat).id);
}

function answer(parent, fields = {}, own = settings) {
  return write(add(desk.chat, parent, { role: "assistant", status: "writing", steps: [], ...fields }), own);
}

function onReady() {
  const waiting = shown().at(-1);
  if (waiting?.status === "waiting" && !busy()) write(waiting);
  drawLegend(lastAnswer());
}

// Writes an answer from its beginning, or from where it was cut.
async function write(node, own = settings) {
  const { chat } = desk; // another may be opened before this answer has ended
  if (!server.model) {
    Object.assign(node, { status: "waiting" });
    render();
    return;
  }
  Object.assign(node, { hint: null, edited: false });
  running = new Answer(chat, node, eachFrame(() => progress(chat, node)));
  say("writing");
  render();
  follow(true);
  await running.write((signal) => server.prepared(signal), own);
  running = null;
  if (leaving) Object.assign(node, { status: "stopped", error: null });
  const away = node.error?.kind === "away";
  if (away && !node.content) Object.assign(node, { status: "waiting", error: null });
  say({ done: "ready", stopped: "stopped", failed: "failed", waiting: "server away" }[node.status], node.status === "failed");
  if (away || node.error?.kind === "broken") server.lost();
  if (node.status === "done") server.saidSmall();
  desk.keep(chat);
  if (desk.chat === chat) render();
  if (node.status !== "failed") announce(node.status === "done" ? `Answer: ${node.content.slice(0, 600)}` : node.status); // errors are alerts
  composer.next(node.status === "done" || desk.chat !== chat); // what waits is for the chat that is shown
}

function progress(chat, node) {
  if (Date.now() - desk.saved > SAVE_EVERY) desk.keep(chat);
  if (desk.chat !== chat) return;
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
  edit(node, text) {
    const { role, parent, files } = node;
    if (role === "user") answer(add(desk.chat, parent, { role, content: text, ...(files ? { files } : {}) }).id);
    else rewrite(parent, text);
  },
  regenerate(node, draft = null) {
    answer(node.parent, {}, draft === null ? settings : { ...settings, draft, cold: true });
    last(desk.chat).hint = draft === null ? sameAgain(settings) : null;
  },
  goOn: (node) => write(node),
  branch(node) {
    const made = fork(desk.chat, node.id);
    store.save(made);
    desk.open(made.id);
    announce("A new chat goes on from here");
  },
  choose(id) {
    choose(desk.chat, id);
    desk.keep(desk.chat);
    render();
  },
  sources: () => sourcesOf(server.model),
  toolResult: (node, call, text) => answerTool(node, call, text),
};

// An answer as the user would have it, to be gone on with.
function rewrite(parent, content) {
  add(desk.chat, parent, { role: "assistant", content, status: "stopped", edited: true, steps: [] });
  desk.keep(desk.chat);
  render();
}

function answerTool(node, call, text) {
  const { chat } = desk;
  const given = shown().slice(shown().indexOf(node) + 1).filter((each) => each.role === "tool").map((each) => each.callId);
  const result = add(chat, last(chat).id, { role: "tool", content: text, callId: call.id });
  if (node.calls.every(({ id }) => id === call.id || given.includes(id))) answer(result.id);
  else render();
}

function stop() {
  running?.stop();
}

async function startRace() {
  const question = busy() || !server.model ? null : raced(desk.chat);
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

// -- drawing ----------------------------------------------------------------------------------------------------

function render() {
  closeInspector();
  $("welcome").hidden = shown().length > 0;
  messages.render(desk.chat, shown(), { asTokens: $("token-view").checked, busy: busy(), named: server.models.length > 1 });
  composer.show();
  $("race-start").disabled = busy();
  drawFigures();
  desk.draw();
}

function drawFigures() {
  showPlots($("plots"), lastAnswer());
  drawLegend(lastAnswer());
}

function onShow() {
  composer.clear();
  $("system").value = desk.chat.system;
  showPrompt(desk.chat.system);
  render();
  follow(true);
  looks.closeDrawers();
}

function instruct(text) {
  desk.chat.system = text;
  touch(desk.chat);
  if (shown().length) desk.keep(desk.chat);
}

// -- the beginning ----------------------------------------------------------------------------------------------

const messages = new Messages($("log"), actions);
const attachments = new Attachments(() => server.model);
const editLast = () => {
  const node = busy() ? null : lastOf("user");
  return node ? messages.editShown(node) : false;
};
const composer = new Composer({ send, stop, isBusy: busy, editLast, attachments });
const server = new Connection({ onReady, isBusy: busy });
const looks = setUpLooks({ onColours: () => drawLegend(lastAnswer()), onView: render });
const desk = new Desk({ onShow, writing: () => running?.chat ?? null, stop });

buildSettings($("fields"));
setUpPrompts(instruct);
setUpKeys({
  write: () => $("text").focus(), fresh: () => desk.startNew(), search: () => looks.focusIn("chats", "search"), edit: editLast,
  again: () => { if (!busy() && lastOf("assistant")) actions.regenerate(lastOf("assistant")); },
  copy: () => { if (lastOf("assistant")) copy(lastOf("assistant").content); },
  panel: () => looks.toggle("panel"), tokens: () => $("token-view").click(), attach: () => $("attach").click(),
});
watchTokens($("log"), (container) => ({ chat: desk.chat, model: server.model, node: desk.chat.nodes[container.closest("[data-node]").dataset.node] }));
$("race-start").addEventListener("click", startRace);
$("system").addEventListener("change", () => {
  instruct($("system").value);
  showPrompt($("system").value);
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || $("key-map").open) return;
  if (closeInspector() || looks.closeDrawers()) return;
  if (busy()) stop();
  else if (event.target === $("text")) $("log").focus();
});
addEventListener("beforeunload", () => {
  leaving = true;
  setTimeout(() => { leaving = false; }, 1000);
});
addEventListener("pagehide", () => {
  for (const each of new Set([desk.chat, running?.chat])) if (each && path(each).length) desk.keep(each);
});
const [newest] = store.list();
if (newest) desk.open(newest.id);
else render();
server.connect();
