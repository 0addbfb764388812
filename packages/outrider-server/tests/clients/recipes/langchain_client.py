import os

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

url = os.environ["URL"]


class City(BaseModel):
    """A city."""

    name: str


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


MODELS = (
    ChatOpenAI(model="lab", base_url=url + "/v1", api_key="none"),
    ChatOpenAI(model="lab", base_url=url + "/v1", api_key="none", use_responses_api=True),
    ChatAnthropic(model="lab", base_url=url, api_key="none"),
    ChatOllama(model="lab", base_url=url),
)
for model in MODELS:
    assert model.invoke("SAY <<Hello there.>>").text == "Hello there."
    assert "".join(part.text for part in model.stream("SAY <<Hello there.>>")) == "Hello there."
    turns = [HumanMessage('CALL <<{"name": "add", "arguments": {"a": 2, "b": 3}}>>')]
    answer = model.bind_tools([add]).invoke(turns)
    assert answer.tool_calls[0]["args"] == {"a": 2, "b": 3}
    turns += [
        answer,
        ToolMessage(str(add.invoke(answer.tool_calls[0]["args"])), tool_call_id=answer.tool_calls[0]["id"]),
    ]
    assert model.bind_tools([add]).invoke(turns).text == "The tool said: 5"
    said = 'CALL <<{"name": "City", "arguments": {"name": "Paris"}}>>'
    if not isinstance(model, ChatAnthropic):
        said = 'SAY <<{"name": "Paris"}>>'
    assert model.with_structured_output(City).invoke(said) == City(name="Paris"), type(model)
