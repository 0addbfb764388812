// Prometheus' text format: names to samples.

// [{ labels: { source: "suffix" }, value: 3 }, ...] by name; names without the prefix "outrider:".
export function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = /^([\w:]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const name = match[1].replace(/^outrider:/, "");
    if (!found.has(name)) found.set(name, []);
    found.get(name).push({ labels: labels(match[2] ?? ""), value: Number(match[3].replace("Inf", "Infinity")) });
  }
  return found;
}

function labels(text) {
  const pairs = [...text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)];
  return Object.fromEntries(pairs.map(([, name, value]) => [name, value.replace(/\\(.)/g, "$1")]));
}

export const value = (metrics, name) => metrics.get(name)?.reduce((sum, sample) => sum + sample.value, 0) ?? 0;

// Sums by one label.
export function by(metrics, name, label) {
  const sums = new Map();
  for (const { labels: own, value: number } of metrics.get(name) ?? []) sums.set(own[label], (sums.get(own[label]) ?? 0) + number);
  return sums;
}

// A quantile of a histogram's buckets, by straight lines between their bounds; null without samples.
export function quantile(metrics, name, share) {
  const buckets = (metrics.get(`${name}_bucket`) ?? []).map(({ labels: own, value: count }) => [bound(own.le), count]);
  const total = buckets.at(-1)?.[1] ?? 0;
  if (!total) return null;
  let [low, below] = [0, 0];
  for (const [high, count] of buckets) {
    if (count >= share * total) {
      if (high === Infinity) return low;
      return low + ((high - low) * (share * total - below)) / Math.max(1, count - below);
    }
    [low, below] = [high, count];
  }
  return low;
}

const bound = (text) => (text === "+Inf" ? Infinity : Number(text));
