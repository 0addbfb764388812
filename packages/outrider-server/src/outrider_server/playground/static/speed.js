// How fast an answer was, in plain words, beside other answers to the same message.

import { siblings } from "/playground/conversation.js";

// Of an answer that is done: one line.
export function speedOf(chat, node) {
  const { timings, metrics, asked } = node;
  const perSecond = timings.predicted_per_second;
  const drafts = metrics.num_draft_tokens > 0;
  const source = asked?.draft && !["auto", "none", "several"].includes(asked.draft) ? ` by ${asked.draft}` : "";
  const how = drafts ? `with drafts${source}` : asked?.draft === "none" ? "without drafts" : "nothing drafted";
  const parts = [perSecond ? `${rounded(perSecond)} tokens/s ${how}` : how, `${timings.predicted_n} tokens`];
  if (drafts) parts.push(`${metrics.num_accepted_draft_tokens} of ${metrics.num_draft_tokens} draft tokens accepted`);
  const compared = drafts && perSecond ? beside(chat, node) : "";
  return compared ? `${parts.join(" · ")}. ${compared}` : parts.join(" · ");
}

// The same question answered without drafts, if it was. Drafts that have seen this very answer are not compared.
function beside(chat, node) {
  const others = siblings(chat, node).all.map((id) => chat.nodes[id]);
  const plain = others.find(({ status, asked, timings }) => status === "done" && asked?.draft === "none" && timings?.predicted_per_second);
  const isKnown = others.slice(0, others.indexOf(node)).some(({ content }) => content === node.content);
  if (!plain || (isKnown && !node.asked?.cold)) return "";
  const ratio = node.timings.predicted_per_second / plain.timings.predicted_per_second;
  const same = plain.content === node.content ? "and the same text" : "and another text";
  return `${ratio.toFixed(1)} times as fast as without drafts (${rounded(plain.timings.predicted_per_second)} tokens/s), ${same}.`;
}

const rounded = (number) => (number < 10 ? number.toFixed(1) : number.toFixed(0));
