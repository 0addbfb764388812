"""JSON of a schema. Tokens that the schema leaves no choice about are drafted for nothing."""

import json

from outrider import LLM, SamplingParams, StructuredOutput

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Grace"]}, "born": {"type": "integer", "minimum": 1800, "maximum": 1999}},
    "required": ["name", "born"],
    "additionalProperties": False,
}

with LLM("smollm2-135m-instruct") as llm:
    params = SamplingParams(max_tokens=64, structured=StructuredOutput(json_schema=SCHEMA))
    output = llm.chat([{"role": "user", "content": "Describe Ada Lovelace as JSON."}], params)
    print(json.loads(output.text))
    print(dict(output.stats.accepted_by))
