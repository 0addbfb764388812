// The conversation as it is shown: one view for each message of the current branch, kept while it grows.

import { shownFiles } from "/playground/attachments.js";
import { siblings } from "/playground/conversation.js";
import { button, copy, el } from "/playground/dom.js";
import { forgetMarkdown, showMarkdown } from "/playground/markdown.js";
import { speedOf } from "/playground/speed.js";
import { showTokens } from "/playground/tokens.js";
import { toolCards } from "/playground/tools.js";

export class Messages {
  // `actions`: edit(node, text), regenerate(node, draft), goOn(node), branch(node), choose(id), sources(),
  // toolResult(node, call, text).
  constructor(log, actions) {
    Object.assign(this, { log, actions, views: new Map() });
  }

  // `nodes`: the current branch, first to last. `busy`: an answer is being written.
  render(chat, nodes, { asTokens, busy, named }) {
    Object.assign(this, { chat, asTokens, busy, named, lastId: nodes.at(-1)?.id });
    const keep = new Set(nodes.map((node) => node.id));
    for (const [id, view] of this.views) {
      if (keep.has(id)) continue;
      view.root.remove();
      this.views.delete(id);
    }
    nodes.forEach((node, place) => {
      if (!this.views.has(node.id)) this.views.set(node.id, this.make(node));
      const { root } = this.views.get(node.id);
      if (this.log.children[place] !== root) this.log.insertBefore(root, this.log.children[place] ?? null);
      this.update(node);
    });
  }

  make(node) {
    const names = { user: "You", assistant: "Answer", tool: "Result of a tool" };
    const root = el("article", { class: `message ${node.role}`, "aria-label": names[node.role], "data-node": node.id });
    return { root, body: null, kind: "" };
  }

  update(node) {
    const view = this.views.get(node.id);
    if (!view || view.editing) return;
    const tokens = this.asTokens && node.steps?.length > 0;
    const kind = node.role !== "assistant" ? "bubble" : tokens ? "tokens" : "prose";
    if (view.kind !== kind) {
      const aria = kind === "tokens" ? { tabindex: "0", role: "group", "aria-label": "Tokens; the arrow keys go through them" } : {};
      view.body = el("div", { class: kind, ...aria });
      view.kind = kind;
      view.foot = el("div", { class: "foot" });
      view.root.replaceChildren(view.body, view.foot);
    }
    if (kind === "bubble") this.bubble(view, node);
    else if (kind === "tokens") showTokens(view.body, node);
    else this.prose(view, node);
    this.foot(view, node);
  }

  bubble(view, node) {
    view.body.textContent = node.content;
    view.body.hidden = !node.content;
    if (!node.files?.length || view.files?.isConnected) return;
    view.files = shownFiles(node.files);
    view.body.before(view.files);
  }

  prose(view, node) {
    const growing = node.status === "writing";
    view.root.classList.toggle("writing", growing);
    if (node.content) showMarkdown(view.body, node.content, { growing });
    else forgetMarkdown(view.body, ...(growing ? [el("p", { class: "quiet" }, "Reading the prompt…")] : []));
  }

  foot(view, node) {
    const busy = this.busy || node.status === "writing" || node.status === "waiting";
    const state = JSON.stringify([busy, node.status, node.finish, node.error, node.calls?.length, this.asTokens, siblings(this.chat, node), node.id === this.lastId, node.timings]);
    if (view.state === state && view.foot.isConnected && view.foot.childElementCount) return; // a button keeps its focus
    view.state = state;
    const calls = node.calls?.length ? toolCards(node.calls, this.answersCalls(node)) : [];
    view.foot.replaceChildren(...calls, ...notes(node, this), el("div", { class: "actions" }, ...this.actionsOf(view, node, busy)));
  }

  answersCalls(node) {
    if (node.id !== this.lastId || this.busy) return null;
    return (call, text) => this.actions.toolResult(node, call, text);
  }

  actionsOf(view, node, busy) {
    if (busy && node.id === this.lastId) return [];
    const { actions } = this;
    const made = [...this.versions(node, busy)];
    if (node.role === "assistant") made.push(button("Regenerate", () => actions.regenerate(node), { disabled: busy }), this.others(view, node, busy));
    if (node.role !== "tool") made.push(button("Edit", () => this.edit(view, node), { disabled: busy }));
    const copied = button("Copy", () => copy(node.content, copied));
    if (node.content) made.push(copied);
    made.push(button("Branch", () => actions.branch(node), { title: "A chat of its own that goes on from here" }));
    return made;
  }

  // Answers the message again with another source of drafts, or with none.
  others(view, node, busy) {
    const id = `sources-${node.id}`;
    const opener = button("with…", () => {
      const row = view.foot.querySelector(".sources");
      opener.setAttribute("aria-expanded", String(!row));
      if (row) return row.remove();
      const names = this.actions.sources();
      const made = names.map(([name, label]) => button(label, () => this.actions.regenerate(node, name)));
      const group = el("div", { class: "sources", id, role: "group", "aria-label": "Answer again with" }, el("span", { class: "quiet" }, "Answer again with"), ...made);
      view.foot.append(group);
      made[0]?.focus();
      group.scrollIntoView({ block: "nearest" });
      return null;
    }, { disabled: busy, "aria-expanded": "false", "aria-label": "with another source of drafts", title: "Regenerate with another source of drafts" });
    return opener;
  }

  versions(node, busy) {
    const { all, index } = siblings(this.chat, node);
    if (all.length < 2) return [];
    const to = (place, sign, label) => button(sign, () => this.actions.choose(all[place]),
      { class: "plain icon", "aria-label": label, disabled: busy || all[place] === undefined });
    return [el("span", { class: "versions" }, to(index - 1, "‹", "Earlier version"),
      el("span", { class: "quiet" }, `${index + 1} of ${all.length}`), to(index + 1, "›", "Later version"))];
  }

  editShown(node) {
    const view = this.views.get(node.id);
    if (!view || view.editing) return false;
    this.edit(view, node);
    view.root.scrollIntoView({ block: "nearest" });
    return true;
  }

  edit(view, node) {
    const own = node.role === "user"; // an answer is changed, and gone on with if asked
    const field = el("textarea", { "aria-label": own ? "Edit the message" : "Edit the answer", rows: Math.min(14, node.content.split("\n").length + 1) });
    field.value = node.content;
    const close = () => {
      view.editing = false;
      view.kind = "";
      this.update(node);
      view.root.querySelector(".actions button")?.focus();
    };
    const send = () => {
      close();
      if (field.value.trim()) this.actions.edit(node, field.value.trim());
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (own ? !event.shiftKey : event.ctrlKey || event.metaKey) && !event.isComposing) { event.preventDefault(); send(); }
      if (event.key === "Escape") { event.stopPropagation(); close(); }
    });
    view.editing = true;
    view.root.replaceChildren(el("div", { class: "edit" }, field,
      el("div", { class: "actions" }, button(own ? "Send" : "Save", send, { class: "" }), button("Cancel", close))));
    field.focus();
  }
}

// What became of an answer, and what can be done about it.
function notes(node, { actions, busy, named, chat }) {
  if (node.role !== "assistant") return [];
  const made = [];
  if (node.status === "waiting") made.push(el("p", { class: "note", role: "status" }, "The server does not answer. The message is sent again when it is back."));
  if (node.status === "failed") made.push(failure(node, actions, busy));
  const cut = node.status === "stopped" ? (node.edited ? "Edited." : "Stopped.") : node.finish === "length" ? "This is as long as “Tokens at most” or the server allows." : "";
  if (isFull(node)) made.push(el("p", { class: "note" }, `The context of ${node.context} tokens is full. A new chat, or a branch from an earlier message, has room.`));
  else if (cut) made.push(el("p", { class: "note" }, `${cut} `, again(node, actions, busy)));
  if (node.hint) made.push(el("p", { class: "note" }, node.hint));
  if (node.timings && node.status === "done") made.push(el("p", { class: "note speed" }, speedOf(chat, node) + (named ? ` · ${node.model}` : "")));
  return made;
}

const isFull = ({ finish, usage, context }) => finish === "length" && usage?.total_tokens >= context;

function failure(node, actions, busy) {
  const { message, status, retryAfter } = node.error;
  const when = retryAfter ? ` It may work in ${retryAfter} s.` : "";
  return el("div", { class: "error", role: "alert" },
    el("strong", {}, status ? `Error ${status}` : "Error"), el("p", {}, message + when), again(node, actions, busy));
}

function again(node, actions, busy) {
  return button(node.content ? "Continue" : "Try again", () => actions.goOn(node), { disabled: busy });
}
