// One answer on its way: from the request to the tokens, drafts and figures of its node.

import { stream } from "/playground/api.js";
import { request } from "/playground/request.js";

// node.status: waiting, writing, done, stopped, failed. node.steps: what each step of the engine gave.
//
//     { at: ms since the first, tokens: [[id, text, origin, source], ...], draft: { tokens, parents, ... } or null }
export class Answer {
  constructor(chat, node, onChange) {
    Object.assign(this, { chat, node, onChange });
    this.abort = new AbortController();
  }

  stop() {
    this.abort.abort();
  }

  // Writes until it ends, is stopped or fails. Never throws. `prepared(signal)`: the model, once it can answer.
  async write(prepared, settings) {
    const { node } = this;
    const open = Boolean(node.content);
    try {
      if (open) trim(node);
      Object.assign(node, { status: "writing", error: null, finish: null, steps: node.steps ?? [] });
      const model = await prepared(this.abort.signal);
      node.model = model.id;
      const from = open ? node.id : node.parent;
      const { path, body } = request(model, settings, this.chat, from, { open });
      node.asked = { draft: settings.draft, cold: settings.cold === true, temperature: body.temperature ?? null, system: this.chat.system, tools: body.tools ?? null };
      node.context = model.max_model_len;
      await this.receive(path, { ...body, token_details: true, draft_details: true, stream_options: { include_usage: true } });
      node.status = "done";
    } catch (error) {
      this.fail(error);
    }
    this.onChange();
  }

  fail(error) {
    const { node } = this;
    if (error.name === "AbortError") {
      node.status = "stopped";
      return;
    }
    node.status = "failed";
    const { message, kind = "settings", code = null, status = null, retryAfter = null } = error;
    node.error = { message, kind, code, status, retryAfter };
  }

  async receive(path, body) {
    const { node } = this;
    const before = node.steps.at(-1)?.at ?? 0; // an answer that is gone on with
    let began = null;
    for await (const chunk of stream(path, body, this.abort.signal)) {
      const [choice] = chunk.choices;
      if (chunk.metrics) Object.assign(node, { metrics: chunk.metrics.speculative_decoding, timings: chunk.timings, usage: chunk.usage });
      if (!choice) continue;
      const delta = choice.delta ?? { content: choice.text };
      node.content += delta.content ?? "";
      if (choice.seed !== undefined) node.seed = choice.seed;
      if (delta.tool_calls) node.calls = [...(node.calls ?? []), ...delta.tool_calls.map(withoutIndex)];
      if (choice.finish_reason) node.finish = choice.finish_reason;
      if (choice.token_details?.length) {
        began ??= performance.now();
        const tokens = choice.token_details.map((token) => [token.id, token.text, token.origin, token.source]);
        node.steps.push({ at: before + Math.round(performance.now() - began), tokens, draft: choice.draft_details?.[0] ?? null });
      }
      this.onChange();
    }
  }
}

// The server continues after the last visible character; what follows it here must go.
function trim(node) {
  node.content = node.content.trimEnd();
}

function withoutIndex({ index: _, ...call }) {
  return call;
}
