import os

import anthropic

client = anthropic.Anthropic(base_url=os.environ["URL"], api_key="none")
ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
TOOL = {"name": "add", "description": "Add.", "input_schema": ADD}
CALL = {"role": "user", "content": 'CALL <<{"name": "add", "arguments": {"a": 2, "b": 3}}>>'}
ASK = {"model": "lab", "max_tokens": 100, "messages": [{"role": "user", "content": "SAY <<Hello there.>>"}]}

assert client.messages.create(**ASK, system="Be brief.").content[0].text == "Hello there."
with client.messages.stream(**ASK) as stream:
    assert "".join(stream.text_stream) == "Hello there."
count = client.messages.count_tokens(model="lab", messages=ASK["messages"], tools=[TOOL]).input_tokens
assert count > 100
for more in (
    {},
    {"tool_choice": {"type": "any"}},
    {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
):
    call = client.messages.create(**ASK | {"messages": [CALL]}, tools=[TOOL], **more)
    assert (call.stop_reason, call.content[-1].input) == ("tool_use", {"a": 2, "b": 3}), more
result = {"type": "tool_result", "tool_use_id": call.content[-1].id, "content": "5"}
turns = [CALL, {"role": "assistant", "content": call.content}, {"role": "user", "content": [result]}]
assert client.messages.create(**ASK | {"messages": turns}, tools=[TOOL]).content[0].text == "The tool said: 5"


@anthropic.beta_tool
def add(a: int, b: int) -> str:
    """Add."""
    return str(a + b)


runner = client.beta.messages.tool_runner(model="lab", max_tokens=100, tools=[add], messages=[CALL])
assert runner.until_done().content[0].text == "The tool said: 5"
assert [model.id for model in client.models.list()] == ["lab"]
