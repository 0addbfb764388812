// Figures of an answer while it is written: speed, tokens per run, acceptance by position, and what was drafted.

import { el, percent, svg } from "/playground/dom.js";
import { depths } from "/playground/drafts.js";

const WIDTH = 300, HEIGHT = 64, WINDOW = 8, COLUMNS = 60, POSITIONS = 16;
const LABELS = 8; // as many as have room side by side

// Shows the steps of a node (see answer.js) in `container`.
export function showPlots(container, node) {
  const steps = node?.steps ?? [];
  const plots = steps.length ? [tau(steps), speed(steps), positions(steps), choice(steps)] : [];
  const nothing = el("p", { class: "quiet" }, "Figures appear with the first answer.");
  container.replaceChildren(...(plots.length ? plots : [nothing]));
}

function figure(title, value, drawing, hint) {
  return el("figure", {}, el("figcaption", {}, el("span", {}, title), el("output", {}, value)), drawing,
    hint ? el("p", { class: "hint" }, hint) : null);
}

function frame(label, ...children) {
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "plot", role: "img", "aria-label": label, preserveAspectRatio: "none" },
    svg("line", { class: "axis", x1: 0, y1: HEIGHT - 0.5, x2: WIDTH, y2: HEIGHT - 0.5 }), ...children);
}

function line(values, most) {
  const drawn = thinned(values);
  const x = (i) => (drawn.length === 1 ? WIDTH : (WIDTH * i) / (drawn.length - 1));
  const y = (value) => HEIGHT - 2 - ((HEIGHT - 6) * value) / most;
  const points = drawn.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`);
  return svg("polyline", { class: "curve", points: points.join(" ") });
}

// At most one value for each unit of width, so that a long answer costs no more to draw than a short one.
function thinned(values) {
  const each = Math.ceil(values.length / WIDTH);
  return values.filter((_, i) => (values.length - 1 - i) % each === 0);
}

const highest = (values, least) => values.reduce((most, value) => Math.max(most, value), least);

// The mean over the last steps, at each of them.
function moving(steps, of) {
  return steps.map((_, i) => of(steps.slice(Math.max(0, i + 1 - WINDOW), i + 1), Math.max(0, i - WINDOW)));
}

const count = (steps) => steps.reduce((sum, step) => sum + step.tokens.length, 0);

function tau(steps) {
  const values = moving(steps, (window) => count(window) / window.length);
  const mean = (count(steps) / steps.length).toFixed(2);
  return figure("Tokens per run (τ)", mean, frame(`Tokens per run over the answer, ${mean} on average`, line(values, highest(values, 2))));
}

function speed(steps) {
  const values = moving(steps, (window, before) => rate(window, steps[before]));
  const known = values.filter((value) => value > 0);
  const all = rate(steps, steps[0]);
  const label = `Tokens per second over the answer, ${all.toFixed(0)} on average`;
  return figure("Tokens/s", all ? all.toFixed(0) : "–", frame(label, line(known.length ? known : [0], highest(known, 1) * 1.1)));
}

// Tokens per second after the step `since`.
function rate(steps, since) {
  const own = steps.filter((step) => step !== since);
  const seconds = ((steps.at(-1)?.at ?? 0) - since.at) / 1000;
  return seconds > 0 ? count(own) / seconds : 0;
}

// Share of drafts whose token at each depth was kept, of those that long.
export function acceptance(steps) {
  const drafted = [], accepted = [];
  for (const { draft } of steps) {
    if (!draft?.tokens.length) continue;
    for (let depth = 0; depth <= Math.max(...depths(draft.parents)); depth += 1) drafted[depth] = (drafted[depth] ?? 0) + 1;
    draft.accepted.forEach((_, depth) => { accepted[depth] = (accepted[depth] ?? 0) + 1; });
  }
  return drafted.map((number, depth) => (accepted[depth] ?? 0) / number);
}

function positions(steps) {
  const shares = acceptance(steps);
  const drawn = shares.slice(0, POSITIONS), every = Math.ceil(drawn.length / LABELS);
  const columns = drawn.map((share, i) => {
    const bar = el("div", { class: "fill" });
    bar.style.height = percent(share);
    const [above, below] = i % every ? ["\u00a0", "\u00a0"] : [percent(share), String(i + 1)];
    return el("div", { class: "position", title: `${i + 1}: ${percent(share)}` },
      el("span", {}, above), el("div", { class: "column" }, bar), el("span", {}, below));
  });
  const label = shares.map((share, i) => `${i + 1}: ${percent(share)}`).join(", ");
  const drawing = columns.length
    ? el("div", { class: "positions", role: "img", "aria-label": `Acceptance by position: ${label}` }, ...columns)
    : el("p", { class: "quiet" }, "Nothing was drafted.");
  return figure("Acceptance by position", "", drawing);
}

// What the engine chose in each step: nodes proposed, of which it scored some, of which the model kept some.
function choice(steps) {
  const each = Math.ceil(steps.length / COLUMNS);
  const groups = [];
  for (let i = 0; i < steps.length; i += each) groups.push(steps.slice(i, i + each));
  const mean = (group, of) => group.reduce((sum, step) => sum + of(step), 0) / group.length;
  const bars = groups.map((group) => ({
    proposed: mean(group, ({ draft }) => Math.max(draft?.proposed ?? 0, draft?.tokens.length ?? 0)),
    scored: mean(group, ({ draft }) => draft?.tokens.length ?? 0),
    accepted: mean(group, ({ draft }) => draft?.accepted.length ?? 0),
  }));
  const most = Math.max(1, ...bars.map((bar) => bar.proposed)), width = WIDTH / Math.max(bars.length, 12);
  const rects = bars.flatMap((bar, i) => ["proposed", "scored", "accepted"].map((name) => {
    const height = ((HEIGHT - 4) * bar[name]) / most;
    return svg("rect", { class: `bar-${name}`, x: i * width + 0.5, y: HEIGHT - height, width: Math.max(1, width - 1), height });
  }));
  const idle = steps.filter(({ draft }) => draft?.budget === 0).length;
  const scored = mean(steps, ({ draft }) => draft?.tokens.length ?? 0).toFixed(1);
  const label = `Draft tokens in each step, ${scored} scored on average; ${idle} of ${steps.length} steps without drafts`;
  const hint = el("span", { class: "keys" }, key("proposed"), key("scored"), key("accepted"));
  return figure("Drafted in each step", `${scored} scored`, frame(label, ...rects), hint);
}

const key = (name) => el("span", { class: "key" }, el("span", { class: `swatch bar-${name}` }), name);
