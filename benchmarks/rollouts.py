"""Rollouts for reinforcement learning: a training loop of its own, and the wall time of many answers to one prompt.

python -m benchmarks.rollouts train tests/data/lab/target --plot rollouts.png    # two minutes on two cores
python -m benchmarks.rollouts speed smollm2-135m-instruct -n 64

``train`` samples with Outrider, rewards texts without the letter e, and updates the weights with transformers
(REINFORCE with the group's mean as baseline, as GRPO has it). At every step it compares the log-probabilities of the
sampled tokens with those of a second pass: Outrider's, and the usual one of transformers in bfloat16, padded and in one
batch. The sampler gets the new weights in place.

``speed`` takes the time of n rollouts of one prompt at once without drafts and with them, and of some one by one.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from outrider import LLM, Output, SamplingParams, SpeculationParams

PROMPTS = (
    "KING RICHARD:\n",
    "First Citizen:\n",
    "O Romeo,",
    "My lord,",
    "The queen",
    "What say you",
    "JULIET:\n",
    "And",
)
QUESTION = "Explain why the sky is blue, and why it is red in the evening."


@dataclass(frozen=True)
class Step:
    """What one step of training found. Differences are of log-probabilities, over all sampled tokens."""

    reward: float  # mean share of letters that are no e
    ours_different: int  # tokens whose bits a second pass of ours changes
    usual_different: int  # tokens whose bits the usual pass changes
    tokens: int
    usual_mean: float  # mean absolute difference of the usual pass
    usual_largest: float
    sampling_s: float
    scoring_s: float
    update_s: float  # of the sampler's weights
    accepted: int  # draft tokens
    differences: list[float]


def generated(outputs: Sequence[Output]) -> list[float]:
    """The log-probability of every sampled token, as it was sampled."""
    return [row[token] for each in outputs for row, token in zip(each.logprobs or [], each.token_ids, strict=True)]


def scored(llm: LLM, outputs: Sequence[Output]) -> list[float]:
    """The same by a second pass, which reads prompt and answer as one prompt."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    whole = llm.generate([[*each.prompt_token_ids, *each.token_ids] for each in outputs], params)
    return [
        row[token]
        for each, again in zip(outputs, whole, strict=True)
        for row, token in zip(again.prompt_logprobs[len(each.prompt_token_ids) - 1 :], each.token_ids, strict=True)
    ]


def by_torch(model: Any, outputs: Sequence[Output]) -> Tensor:
    """The same by transformers, float32 [tokens]: all sequences padded, in one batch. Keeps the gradient."""
    sequences = [torch.tensor([*each.prompt_token_ids, *each.token_ids]) for each in outputs]
    mask = pad_sequence([torch.ones_like(each) for each in sequences], batch_first=True)
    logits = model(pad_sequence(sequences, batch_first=True), attention_mask=mask).logits.float()
    rows = logits.log_softmax(-1)
    parts = []
    for row, each in zip(rows, outputs, strict=True):
        start, ids = len(each.prompt_token_ids) - 1, torch.tensor(each.token_ids)
        parts.append(row[start : start + len(ids)].gather(1, ids[:, None])[:, 0])
    return torch.cat(parts)


def reward(text: str) -> float:
    """The share of letters that are no e; 0 without a letter."""
    letters = [c for c in text.lower() if c.isalpha()]
    return 1 - letters.count("e") / len(letters) if letters else 0.0


def train(arguments: argparse.Namespace) -> Iterator[Step]:
    torch.manual_seed(0)
    policy = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=arguments.lr)
    rollouts = len(PROMPTS) * arguments.n
    with LLM(arguments.model, dtype="bfloat16", draft=arguments.draft, max_batch_size=rollouts) as llm:
        for number in range(arguments.steps):
            began = time.perf_counter()
            params = SamplingParams(
                n=arguments.n, temperature=1.0, max_tokens=arguments.max_tokens, seed=1000 * number, logprobs=0
            )
            outputs = llm.generate(list(PROMPTS), params)
            sampled = time.perf_counter()
            own, again = generated(outputs), scored(llm, outputs)
            checked = time.perf_counter()
            usual = _usual(policy, outputs)
            rewards = torch.tensor([reward(each.text) for each in outputs])
            _learn(policy, optimizer, outputs, rewards)
            before = time.perf_counter()
            llm.update_weights(policy.state_dict(), keep_drafts=True)
            differences = [b - a for a, b in zip(own, usual, strict=True)]
            yield Step(
                reward=float(rewards.mean()),
                ours_different=sum(a != b for a, b in zip(own, again, strict=True)),
                usual_different=sum(difference != 0 for difference in differences),
                tokens=len(own),
                usual_mean=fmean(map(abs, differences)),
                usual_largest=max(map(abs, differences)),
                sampling_s=sampled - began,
                scoring_s=checked - sampled,
                update_s=time.perf_counter() - before,
                accepted=sum(each.stats.num_accepted_draft_tokens for each in outputs),
                differences=differences,
            )


def _usual(policy: Any, outputs: Sequence[Output]) -> list[float]:
    """The pass that trainers make: a copy of the weights in bfloat16, all sequences in one batch."""
    rounded = copy.deepcopy(policy).to(torch.bfloat16)
    with torch.no_grad():
        found: list[float] = by_torch(rounded, outputs).tolist()
    return found


def _learn(policy: Any, optimizer: torch.optim.Optimizer, outputs: Sequence[Output], rewards: Tensor) -> None:
    """A step of REINFORCE: each answer against the mean of its group."""
    groups = rewards.view(len(PROMPTS), -1)
    advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()
    weights = torch.cat([advantages[i].expand(len(each.token_ids)) for i, each in enumerate(outputs)])
    optimizer.zero_grad()
    loss = -(weights * by_torch(policy, outputs)).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()


def plot(steps: Sequence[Step], path: Path) -> None:
    """Differences of both passes by token, and the reward by step."""
    import matplotlib as mpl
    from PIL import Image

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), dpi=80, layout="constrained")
    every = [difference for step in steps for difference in step.differences]
    left.hist(
        every, bins=81, range=(-0.1, 0.1), log=True, color="tab:orange", label="transformers, bfloat16, one batch"
    )
    left.hist(
        [0.0] * len(every), bins=81, range=(-0.1, 0.1), log=True, color="tab:blue", label="Outrider's second pass"
    )
    left.set(xlabel="second pass - sampler, log-probability", ylabel="tokens")
    left.legend(fontsize=7)
    right.plot([step.reward for step in steps], color="tab:green")
    right.set(xlabel="step", ylabel="letters other than e")
    figure.savefig(path)
    plt.close(figure)
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(32)
    small.save(path, optimize=True)


def speed(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds and tokens/s of n rollouts of one prompt, and of some of them one by one."""
    found: dict[str, Any] = {"n": arguments.n}
    with LLM(arguments.model, max_batch_size=arguments.n, max_seq_len=512) as llm:
        prompt = llm.read(QUESTION if arguments.raw else [{"role": "user", "content": QUESTION}]).token_ids
        plain = SpeculationParams(draft="none")
        tokens: dict[str, list[list[int]]] = {}
        for epoch in ("first", "second"):
            for name, speculation in (("none", plain), ("default", llm.speculation)):
                params = SamplingParams(
                    n=arguments.n, temperature=1.0, max_tokens=arguments.max_tokens, seed=1, ignore_eos=True
                )
                began = time.perf_counter()
                outputs = llm.generate([prompt], params, speculation=speculation)
                seconds = time.perf_counter() - began
                tokens[name] = [each.token_ids for each in outputs]
                found[f"{name}, {epoch}"] = {
                    "s": round(seconds, 2),
                    "tokens/s": round(arguments.n * arguments.max_tokens / seconds, 1),
                    "cached prompt tokens": [each.stats.cached_prompt_tokens for each in outputs[:3]],
                    "prompt tokens": outputs[0].stats.prompt_tokens,
                    "accepted": sum(each.stats.num_accepted_draft_tokens for each in outputs),
                }
            found[f"equal, {epoch}"] = tokens["none"] == tokens["default"]
        few = min(arguments.n, arguments.alone)
        began = time.perf_counter()
        for i in range(few):
            single = SamplingParams(temperature=1.0, max_tokens=arguments.max_tokens, seed=1 + i, ignore_eos=True)
            assert llm.generate([prompt], single, speculation=plain)[0].token_ids == tokens["none"][i]
        found["none, one by one"] = {"tokens/s": round(few * arguments.max_tokens / (time.perf_counter() - began), 1)}
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "speed"])
    parser.add_argument("model", help="a folder for train; any model for speed")
    parser.add_argument("-n", type=int, default=8, help="rollouts of a prompt")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--draft", default="suffix")
    parser.add_argument("--alone", type=int, default=4, help="rollouts that speed runs one by one")
    parser.add_argument("--raw", action="store_true", help="speed without a chat template")
    parser.add_argument("--plot", type=Path, help="a picture of train")
    arguments = parser.parse_args(argv)
    if arguments.what == "speed":
        print(json.dumps(speed(arguments), indent=1))
        return
    steps: list[Step] = []
    for step in train(arguments):
        steps.append(step)
        shown = {k: v for k, v in asdict(step).items() if k != "differences"}
        print(json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in shown.items()}), flush=True)
    if arguments.plot is not None:
        plot(steps, arguments.plot)


if __name__ == "__main__":
    main()
