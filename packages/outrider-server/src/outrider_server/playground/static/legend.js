// What the colours of tokens mean, and how many tokens of an answer have each.

import { $, el } from "/playground/dom.js";
import { colour, ORIGINS } from "/playground/tokens.js";

export function drawLegend(node) {
  const found = counts(node);
  const bySource = $("by-source").getAttribute("aria-pressed") === "true";
  const rows = bySource
    ? Object.entries(found.source).map(([source, number]) => [colour(source), source === "none" ? "the model itself" : source, number])
    : Object.entries(ORIGINS).map(([origin, words]) => [origin, words, found.origin[origin]]);
  $("legend").replaceChildren(...rows.map(([swatch, words, number]) => el("li", {},
    el("span", { class: `swatch ${swatch}` }), el("span", {}, words), el("span", { class: "count" }, String(number ?? 0)))));
}

// Counts of an answer's tokens by outcome and by source, for the legend.
function counts(node) {
  const found = { origin: {}, source: {} };
  for (const step of node?.steps ?? []) {
    for (const [, , origin, source] of step.tokens) {
      const by = origin === "accepted" ? source : "none";
      colour(by);
      found.origin[origin] = (found.origin[origin] ?? 0) + 1;
      found.source[by] = (found.source[by] ?? 0) + 1;
    }
  }
  return found;
}
