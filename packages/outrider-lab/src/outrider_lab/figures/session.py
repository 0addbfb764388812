"""Makes every figure that needs a model, in one session with it."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path

from outrider.config import SamplingParams, SpeculationParams
from outrider.llm import LLM
from outrider.verify.verifiers.catalog import VERIFIERS
from outrider_lab import agreement, draft_quality
from outrider_lab.agreement import Agreement, TargetText
from outrider_lab.comparison import compare
from outrider_lab.figures import run_plots
from outrider_lab.figures.page import WrittenFigure
from outrider_lab.measure import Tick
from outrider_lab.trace import record

TEMPERATURES = (0.0, 1.0)
LENGTHS = (3, 7)  # K of each source
ROUNDS = 2  # runs of each setting
BATCH = 8  # requests that generate target text together


def of_model(
    llm: LLM, about: str, prompts: Sequence[list[int]], out: Path, *, tokens: int, tick: Tick
) -> list[WrittenFigure]:
    """The figures for one target and its draft sources. ``tokens``: target tokens to measure agreement on."""
    return [
        *trace_of(llm, about, prompts[0], out, tick),
        *agreement_of(llm, about, prompts, out, tokens, tick),
        comparison_of(llm, about, prompts, out, tick),
    ]


def pieces(llm: LLM, prompts: Sequence[list[int]], tokens: int) -> int:
    """About the number of calls of ``tick`` by all figures, ``draft_quality_figure`` included."""
    traced = 3 if llm.draft_models else 0
    together = len(prompts) / ceil(len(prompts) / BATCH)
    batches = ceil(tokens / (together * _text_length(llm, prompts)))
    text = ceil(batches + batches * together) * len(TEMPERATURES)  # generated together, measured one by one
    settings = 1 + len(sources_of(llm)) * len(LENGTHS)
    runs = settings * (1 + len(prompts) * ROUNDS) + 1  # each is warmed up once
    return 1 + traced + text + runs * len(TEMPERATURES)


def draft_quality_figure(out: Path, *, steps: int, tick: Tick) -> WrittenFigure:
    """Acceptance of graded toy drafts by real verifiers; needs no model."""
    verifiers = {name: verifier for name, verifier in VERIFIERS.items() if verifier.exact}
    found = draft_quality.measure_draft_quality(verifiers, steps=steps)
    tick("draft quality")
    return run_plots.draft_quality_plot(out, found, steps)


def sources_of(llm: LLM) -> list[str]:
    """The draft sources that can be built for this model."""
    return list(llm.drafters)


def trace_of(llm: LLM, about: str, prompt: list[int], out: Path, tick: Tick) -> list[WrittenFigure]:
    """Figure 5, if there is a draft model."""
    if not llm.draft_models:
        return []
    params = SamplingParams(max_tokens=48, ignore_eos=True)
    traces = {}
    settings = {"K = 7": 7, "K = 3": 3, "plain decoding": None}
    for name, k in settings.items():
        speculation = SpeculationParams(draft="none") if k is None else SpeculationParams(draft="model", spec_length=k)
        record(llm, prompt, SamplingParams(max_tokens=4), speculation, llm.draft_models[0])  # warm up
        traces[name] = record(llm, prompt, params, speculation, llm.draft_models[0])
        tick(f"trace of {name}")
    return [run_plots.trace_diagram(out, traces, about)]


def agreement_of(
    llm: LLM, about: str, prompts: Sequence[list[int]], out: Path, tokens: int, tick: Tick
) -> list[WrittenFigure]:
    """Tables 3 and 5: α of counts and of the draft model on the target's own text."""
    vocab = llm.engine.vocab_size
    found: dict[float, dict[str, Agreement]] = {}
    for temperature in TEMPERATURES:
        params = SamplingParams(temperature=temperature, seed=1, ignore_eos=True)
        texts = target_text(llm, prompts, params, tokens, tick)
        counts = agreement.NgramCounts(texts, vocab)
        drafts: dict[str, agreement.Predict] = {"unigram": counts.unigram, "bigram": counts.bigram}
        for model in llm.draft_models:
            drafts["draft model"] = agreement.model_probs(model, vocab)
        for totals in agreement.measure_agreement(texts, params, agreement.model_probs(llm.model, vocab), drafts):
            found[temperature] = totals
            tick(f"agreement at temperature {temperature:g}")
    return [run_plots.agreement_table(out, found, about), run_plots.lenience_table(out, found[1.0], about)]


def target_text(
    llm: LLM, prompts: Sequence[list[int]], params: SamplingParams, tokens: int, tick: Tick
) -> list[TargetText]:
    """About ``tokens`` tokens that the target generates after the prompts, repeatedly with different seeds.

    Greedy text does not depend on the seed. Repeated prompts therefore begin with a part of an earlier text.
    """
    room, each = _room(llm), _text_length(llm, prompts)
    texts: list[TargetText] = []
    while sum(len(t.output) for t in texts) < tokens:
        turn, place = divmod(len(texts), len(prompts))
        batch = []
        for i in range(place, min(place + BATCH, len(prompts))):
            prompt = list(prompts[i])
            if turn and params.greedy:  # continue from the middle of the earlier text after this prompt
                earlier = texts[(turn - 1) * len(prompts) + i]
                prompt = (
                    [*prompts[i], *earlier.output[: len(earlier.output) // 2], *prompts[(i + turn) % len(prompts)]]
                )[-room // 2 :]
            batch.append(prompt)
        own = [
            SamplingParams(**{**vars(params), "max_tokens": each, "seed": len(texts) + i}) for i in range(len(batch))
        ]
        outputs = llm.generate(batch, own, speculation=SpeculationParams(draft="none"))
        texts += [TargetText(prompt, output.token_ids) for prompt, output in zip(batch, outputs, strict=True)]
        tick("text of the target")
    return texts


def _room(llm: LLM) -> int:
    """The smallest context of all models, in tokens."""
    return min([llm.engine.max_seq_len, *(m.config.max_seq_len for m in llm.draft_models)])


def _text_length(llm: LLM, prompts: Sequence[list[int]]) -> int:
    """Tokens to generate after each prompt."""
    return max(16, min(120, _room(llm) - max(map(len, prompts)) - 1))


def comparison_of(llm: LLM, about: str, prompts: Sequence[list[int]], out: Path, tick: Tick) -> WrittenFigure:
    """Table 4 for every source, two K, temperatures 0 and 1."""
    settings = {
        f"{source}, K={k}": SpeculationParams(draft=source, spec_length=k)
        for source in sources_of(llm)
        for k in LENGTHS
    }
    rows = []
    for params in (SamplingParams(max_tokens=64), SamplingParams(max_tokens=64, temperature=1.0, seed=3)):
        rows += compare(llm, prompts, params, settings, rounds=ROUNDS, tick=tick)
    return run_plots.theory_and_measurement(out, rows, about)
