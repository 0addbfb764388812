import json
import os

import ollama

client = ollama.Client(host=os.environ["URL"])


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def ask(text):
    return [{"role": "user", "content": text}]


assert client.chat("lab", ask("SAY <<Hello there.>>")).message.content == "Hello there."
streamed = client.chat("lab", ask("SAY <<Hello there.>>"), stream=True, keep_alive="5m")
assert "".join(part.message.content for part in streamed) == "Hello there."
assert client.generate("lab", "SAY <<Hello there.>>").response == "Hello there."
schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
assert json.loads(client.chat("lab", ask('SAY <<{"name": "Paris"}>>'), format=schema).message.content) == {
    "name": "Paris"
}

turns = ask('CALL <<{"name": "add", "arguments": {"a": 2, "b": 3}}>>')
answer = client.chat("lab", turns, tools=[add])
call = answer.message.tool_calls[0].function
turns += [answer.message, {"role": "tool", "tool_name": call.name, "content": str(add(**call.arguments))}]
assert client.chat("lab", turns, tools=[add]).message.content == "The tool said: 5"

assert [model.model for model in client.list().models] == ["lab"]
assert "tools" in client.show("lab").capabilities
assert client.ps().models[0].model == "lab"
assert len(client.embed("lab", ["one", "two"]).embeddings) == 2
