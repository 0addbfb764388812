import json
import os

import openai
from pydantic import BaseModel

client = openai.OpenAI(base_url=os.environ["URL"] + "/v1", api_key="none")


class City(BaseModel):
    name: str
    people: int


ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": ADD}}
CALL = 'CALL <<{"name": "add", "arguments": {"a": 2, "b": 3}}>>'
PARIS = 'SAY <<{"name": "Paris", "people": 2100000}>>'


def chat(text, **more):
    return client.chat.completions.create(model="lab", messages=[{"role": "user", "content": text}], **more)


assert [model.id for model in client.models.list()] == ["lab"]
assert chat("SAY <<Hello there.>>").choices[0].message.content == "Hello there."
parts = list(chat("SAY <<Hello there.>>", stream=True, stream_options={"include_usage": True}))
assert "".join(c.delta.content or "" for part in parts for c in part.choices) == "Hello there."
assert parts[-1].usage.completion_tokens == 4

for more in ({}, {"tool_choice": "required"}, {"parallel_tool_calls": False}):
    call = chat(CALL, tools=[TOOL], **more).choices[0].message
    assert json.loads(call.tool_calls[0].function.arguments) == {"a": 2, "b": 3}, more
result = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "5"}
turns = [{"role": "user", "content": CALL}, call, result]
told = client.chat.completions.create(model="lab", messages=turns, tools=[TOOL])
assert told.choices[0].message.content == "The tool said: 5"
said = [{"role": "user", "content": 'CALL <<{"name": "City", "arguments": {"name": "Paris", "people": 2}}>>'}]
with client.chat.completions.stream(model="lab", messages=said, tools=[openai.pydantic_function_tool(City)]) as stream:
    call = stream.get_final_completion().choices[0].message.tool_calls[0]
assert call.function.parsed_arguments == City(name="Paris", people=2)

messages = [{"role": "user", "content": PARIS}]
parsed = client.chat.completions.parse(model="lab", messages=messages, response_format=City)
assert parsed.choices[0].message.parsed == City(name="Paris", people=2100000)

assert client.responses.create(model="lab", input="SAY <<Hello there.>>").output_text == "Hello there."
assert client.responses.parse(model="lab", input=PARIS, text_format=City).output_parsed.name == "Paris"
with client.responses.stream(model="lab", input="SAY <<Hello there.>>") as stream:
    assert stream.get_final_response().output_text == "Hello there."
tool = {"type": "function", "name": "add", "parameters": ADD, "strict": True}
for more in ({}, {"tool_choice": "required"}, {"parallel_tool_calls": False, "reasoning": {"summary": "auto"}}):
    call = client.responses.create(model="lab", input=CALL, tools=[tool], **more).output[-1]
    assert (call.type, json.loads(call.arguments)) == ("function_call", {"a": 2, "b": 3})
given = [
    {"role": "user", "content": CALL},
    call,
    {"type": "function_call_output", "call_id": call.call_id, "output": "5"},
]
assert client.responses.create(model="lab", input=given, tools=[tool]).output_text == "The tool said: 5"

assert len(client.embeddings.create(model="lab", input=["one", "two"]).data) == 2
assert client.completions.create(model="lab", prompt="One, two,", max_tokens=4).choices[0].text
