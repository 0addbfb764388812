"""Draft sources side by side on your own prompts: tokens per forward pass, and whether the output is the same."""

from outrider import LLM, SamplingParams, SpeculationParams

PROMPTS = ["The cat sat on the mat. The dog sat on", "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):"]
SOURCES = ["none", "lookup", "ngram", "suffix", "recycling", "suffix+recycling"]

with LLM("smollm2-135m-instruct") as llm:
    params = SamplingParams(max_tokens=48)
    plain = [output.token_ids for output in llm.generate(PROMPTS, params, speculation=SpeculationParams(draft="none"))]
    for source in SOURCES:
        speculation = SpeculationParams(draft=source, spec_length=6)
        outputs = llm.generate(PROMPTS, params, speculation=speculation, cache_salt=source)  # each learns alone
        passes = sum(output.stats.target_runs for output in outputs)
        tokens = sum(len(output.token_ids) for output in outputs)
        same = [output.token_ids for output in outputs] == plain
        print(f"{source:18} {tokens / passes:.2f} tokens a pass, {'same tokens' if same else 'DIFFERENT TOKENS'}")
