"""A model's own draft head (multi-token prediction) on held-out texts: α by level, speed, identity; beside llama.cpp.

    python -m benchmarks.mtp MODEL.gguf TEXT... --count 64 --peer LLAMA_CPP_MTP

Prompts are passages of the texts, spread evenly over them. Each is decoded without drafts, and by every source in
turn, greedily and sampled; the order moves on with every prompt. ``default`` is what an engine does without options.
The peer is ``llama_cpp_mtp.cpp`` beside this file, linked with llama.cpp's ``common`` and its libraries.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.decoding import Answer, alphas, decode, speedup, tau, with_interval
from outrider import LLM, SamplingParams, SpeculationParams

PLAIN = "none"
MODES = {"greedy": SamplingParams(), "sampled": SamplingParams(temperature=0.8, top_p=0.95, seed=1234)}


@dataclass(frozen=True)
class PeerAnswer:
    """One prompt decoded by llama.cpp."""

    seconds: float
    drafted: int
    accepted: int
    tokens: list[int]


def passages(llm: LLM, texts: Sequence[Path], count: int, length: int) -> list[list[int]]:
    """``count`` prompts of ``length`` tokens, spread evenly over the texts together."""
    ids = [
        token
        for path in texts
        for token in llm.tokenizer.encode(path.read_text(encoding="utf-8"), add_special_tokens=False)
    ]
    if len(ids) < 2 * length:
        raise SystemExit(f"the texts have {len(ids)} tokens: give longer ones")
    step = (len(ids) - length) / count
    return [ids[int(i * step) : int(i * step) + length] for i in range(count)]


def contenders(levels: int) -> dict[str, SpeculationParams]:
    """Settings by their names. The source ``mtp`` has chains of ``levels`` tokens."""
    return {
        PLAIN: SpeculationParams(draft=PLAIN),
        "suffix": SpeculationParams(draft="suffix"),
        f"mtp:{levels}": SpeculationParams(draft="mtp", spec_length=levels),
        f"suffix,mtp:{levels}": SpeculationParams(draft="suffix,mtp", spec_length=levels),
        "default": SpeculationParams(),
    }


def measure(
    llm: LLM, prompts: Sequence[list[int]], params: SamplingParams, chosen: Mapping[str, SpeculationParams]
) -> dict[str, list[tuple[Answer, list[int]]]]:
    """The answers of every contender, with their tokens, by prompt."""
    found: dict[str, list[tuple[Answer, list[int]]]] = {name: [] for name in chosen}
    order = list(chosen)
    for name in order:
        decode(llm, prompts[0], replace(params, max_tokens=16), chosen[name], "warm up")
    for number, prompt in enumerate(prompts):
        shift = number % len(order)
        for name in order[shift:] + order[:shift]:
            found[name].append(decode(llm, prompt, params, chosen[name], f"{number} {name}"))
    return found


def summary(found: Mapping[str, list[tuple[Answer, list[int]]]]) -> dict[str, dict[str, Any]]:
    """By contender: speed over plain decoding, τ, α by level, and answers that are not plain decoding's."""
    plain = found[PLAIN]
    rows: dict[str, dict[str, Any]] = {}
    for name, own in found.items():
        answers = [answer for answer, _ in own]
        pairs = list(zip([answer for answer, _ in plain], answers, strict=True))
        rows[name] = {
            "tokens_per_s": round(sum(a.tokens - 1 for a in answers) / sum(a.seconds for a in answers), 1),
            "speedup": with_interval(pairs, speedup),
            "tau": round(tau(answers), 3),
            "alpha": [round(a, 3) for a in alphas(answers)[:8]],
            "different": sum(a != b for (_, a), (_, b) in zip(plain, own, strict=True)),
            "of": len(own),
        }
    return rows


def peer_answers(
    program: Path, model: Path, prompts: Sequence[list[int]], tokens: int, levels: int, threads: int
) -> list[PeerAnswer]:
    """llama.cpp's greedy answers; ``levels``: drafted tokens at most, 0: none. Raises if the program fails."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(f"{' '.join(map(str, prompt))}\n" for prompt in prompts))
        file.flush()
        command = [str(program), str(model), file.name, str(tokens), str(levels), str(threads)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    return [PeerAnswer(float(r[0]), int(r[1]), int(r[2]), [int(token) for token in r[3:]]) for r in rows]


def peer_summary(plain: Sequence[PeerAnswer], own: Sequence[PeerAnswer]) -> dict[str, Any]:
    """As ``summary`` of one contender; ``alpha`` over all levels together."""
    drafted = sum(a.drafted for a in own)
    return {
        "tokens_per_s": round(sum(len(a.tokens) for a in own) / sum(a.seconds for a in own), 1),
        "speedup": round(sum(a.seconds for a in plain) / sum(a.seconds for a in own), 3),
        "accepted_share": round(sum(a.accepted for a in own) / drafted, 3) if drafted else None,
        "different": sum(a.tokens != b.tokens for a, b in zip(plain, own, strict=True)),
        "of": len(own),
    }


def show(mode: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a table."""
    print(f"\n| {mode} | tokens/s | over plain | τ | α by level | different |\n|---|---|---|---|---|---|")
    for name, row in rows.items():
        times = row["speedup"]
        said = f"{times['value']:.2f} ({times['low']:.2f} to {times['high']:.2f})" if isinstance(times, dict) else times
        alpha = " ".join(f"{a:.2f}" for a in row.get("alpha", ())) or row.get("accepted_share") or ""
        print(
            f"| {name} | {row['tokens_per_s']:,.0f} | {said} | {row.get('tau', '')} | {alpha} | "
            f"{row['different']} of {row['of']} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--levels", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    parser.add_argument("--peer", type=Path, help="the program of llama_cpp_mtp.cpp")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = parser.parse_args()

    llm = LLM(args.model, threads=args.threads, max_batch_size=1, prefix_reuse=False)
    prompts = passages(llm, args.texts, args.count, args.prompt_tokens)
    result: dict[str, dict[str, dict[str, Any]]] = {}
    for mode in args.modes:
        params = replace(MODES[mode], max_tokens=args.max_tokens, ignore_eos=True)
        result[mode] = summary(measure(llm, prompts, params, contenders(args.levels)))
        show(mode, result[mode])
    if args.peer is not None:
        own = {
            levels: peer_answers(args.peer, Path(args.model), prompts, args.max_tokens, levels, args.threads or 1)
            for levels in (0, args.levels)
        }
        result["llama.cpp, greedy"] = {
            name: peer_summary(own[0], own[levels])
            for name, levels in ((PLAIN, 0), (f"mtp:{args.levels}", args.levels))
        }
        show("llama.cpp, greedy", result["llama.cpp, greedy"])
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
