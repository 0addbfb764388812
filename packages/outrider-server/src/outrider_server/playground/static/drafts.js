// The draft tree of one step, drawn: what was guessed, what the model kept, and the token it added itself.

import { svg } from "/playground/dom.js";

const ROW = 24, GAP = 22, ROOT = 8, PAD = 6, CHARACTER = 7.3, LONGEST = 12;

export const depths = (parents) => {
  const found = [];
  for (const parent of parents) found.push(parent < 0 ? 0 : found[parent] + 1);
  return found;
};

export const shownText = (text) => {
  const visible = text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "␣") || "∅";
  return visible.length > LONGEST ? `${visible.slice(0, LONGEST - 1)}…` : visible;
};

// In words, for who cannot see the drawing.
export function describe({ tokens, draft }) {
  if (!draft?.tokens.length) return draft?.budget === 0 ? "Nothing was drafted: it was not expected to pay." : "Nothing was drafted.";
  const sources = [...new Set(draft.sources)].join(" and ");
  const left = draft.proposed - draft.tokens.length;
  const cut = left > 0 ? `, and ${left} more that were not worth scoring` : "";
  return `${sources} drafted ${draft.tokens.length}${cut}; ${draft.accepted.length} accepted, then “${tokens.at(-1)[1]}”.`;
}

// A step of an answer (see answer.js) as an svg element.
export function drawTree(step) {
  const { draft, tokens } = step;
  const nodes = draft.texts.map((text, i) => ({
    text: shownText(text), parent: draft.parents[i], source: draft.sources[i], score: draft.scores?.[i] ?? null,
    state: draft.accepted.includes(i) ? "accepted" : "refused",
  }));
  const [, text, origin] = tokens.at(-1);
  if (origin !== "accepted") nodes.push({ text: shownText(text), parent: draft.accepted.at(-1) ?? -1, state: origin });
  const { width, height } = place(nodes);
  const root = { x: 1, y: nodes[0].y, width: ROOT }; // the last token before the step
  const edges = nodes.map((node) => edge(nodes[node.parent] ?? root, node));
  const label = `Draft tree: ${describe(step)}`;
  return svg("svg", { class: "tree", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
    ...edges, svg("circle", { class: "root", cx: 1 + ROOT / 2, cy: root.y + 10, r: ROOT / 2 }), ...nodes.map(box));
}

// A column for each depth, a row for each leaf; a node stands beside its first child.
function place(nodes) {
  const columns = depths(nodes.map((node) => node.parent));
  const widths = [];
  nodes.forEach((node, i) => {
    node.width = 2 * PAD + CHARACTER * [...node.text].length;
    widths[columns[i]] = Math.max(widths[columns[i]] ?? 0, node.width);
  });
  let rows = 0;
  const put = (i) => {
    const children = nodes.flatMap((node, child) => (node.parent === i ? [child] : []));
    const firsts = children.map(put);
    if (i < 0) return 0;
    const x = widths.slice(0, columns[i]).reduce((sum, width) => sum + width + GAP, 1 + ROOT + GAP);
    Object.assign(nodes[i], { x, y: children.length ? firsts[0] : 2 + ROW * rows++ });
    return nodes[i].y;
  };
  put(-1);
  return { width: Math.ceil(widths.reduce((sum, width) => sum + width + GAP, 2 + ROOT)), height: ROW * rows + 2 };
}

function edge(from, to) {
  const [x1, y1, x2, y2] = [from.x + from.width, from.y + 10, to.x, to.y + 10];
  const middle = (x1 + x2) / 2;
  return svg("path", { class: `edge ${to.state}`, d: `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` });
}

function box(node) {
  const chance = node.score === null ? "" : `, its source's guess at its chance ${Math.round(100 * node.score)}%`;
  return svg("g", { class: `node ${node.state}` },
    svg("title", {}, `${node.text}: ${node.state}${node.source ? `, by ${node.source}` : ", the model's own"}${chance}`),
    svg("rect", { x: node.x, y: node.y, width: node.width, height: 20, rx: 4 }),
    svg("text", { x: node.x + PAD, y: node.y + 14 }, node.text));
}
