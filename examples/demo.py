"""A real chat model answers with and without speculative decoding: the same tokens, in less time.

Runs the built-in SmolLM2-135M-Instruct (98 MB, fetched once). Exits with 1 if a single token differs.
"""

from __future__ import annotations

import sys
import time

from rich.console import Console

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.cli.shared.screen import Screen, legend, summary

PROMPT = """Copy this note word for word:
Dear Anna, thank you for the lovely dinner on Saturday. The soup was wonderful, the fish was wonderful, and the \
lemon cake was the best lemon cake I have ever eaten. Please send me the recipe for the soup, the recipe for the fish \
and the recipe for the lemon cake. Next Saturday it is our turn: please come to dinner at our house at seven."""

TOY = """This model has 135 million parameters: a toy to try the engine with, whose answers are often wrong.
A better one, from a GGUF file of your own: outrider chat -m ./my-model.gguf
"""

CONTENDERS = {
    "plain decoding": SpeculationParams(draft="none"),
    "n-gram drafts (ngram)": SpeculationParams(draft="ngram", spec_length=8),
    "prompt lookup drafts (lookup)": SpeculationParams(draft="lookup", spec_length=8),
}


def main() -> int:
    console = Console(highlight=False, soft_wrap=True)
    began = time.perf_counter()
    llm = LLM("smollm2-135m-instruct", draft="lookup", progress=True)
    console.print(TOY, style="dim")
    console.print(f"loaded in {time.perf_counter() - began:.1f} s\n\n{PROMPT}\n", style="dim")
    messages = [{"role": "user", "content": PROMPT}]
    params = SamplingParams(max_tokens=200)
    llm.chat(messages, SamplingParams(max_tokens=4))  # warm up

    screen, outputs, seconds = Screen(), {}, {}
    for name, speculation in CONTENDERS.items():
        console.print(name, style="bold")
        began = time.perf_counter()
        for step in llm.stream(messages, params, speculation=speculation):
            screen.show(step)
        screen.end()
        seconds[name] = time.perf_counter() - began
        outputs[name] = tuple(llm.last.output)
        console.print(summary(llm.last) + "\n", style="dim")
    console.print(legend())

    plain = next(iter(CONTENDERS))
    failed = False
    for name in CONTENDERS:
        same = outputs[name] == outputs[plain]
        failed |= not same
        verdict = "the same tokens" if same else "DIFFERENT TOKENS"
        console.print(f"{name:34} {verdict}, {seconds[plain] / seconds[name]:.1f} times the speed of plain decoding")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
