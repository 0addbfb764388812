"""An edit of known text: the old version is drafted, so only what changes takes a forward pass of its own."""

from outrider import LLM, SamplingParams, SpeculationParams

OLD = """def area(width, height):
    if width < 0 or height < 0:
        raise ValueError("negative")
    return width * height
"""
MESSAGES = [{"role": "user", "content": f"Rename the function area to surface. Give only the code.\n{OLD}"}]

with LLM("smollm2-135m-instruct") as llm:
    for draft in ("none", "prediction"):
        speculation = SpeculationParams(draft=draft, prediction=OLD if draft == "prediction" else None, spec_length=10)
        output = llm.chat(MESSAGES, SamplingParams(max_tokens=96), speculation=speculation)
        print(f"{draft}: {len(output.token_ids)} tokens in {output.stats.target_runs} forward passes")
    print(output.text)
