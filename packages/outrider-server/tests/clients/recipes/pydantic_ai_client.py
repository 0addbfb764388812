import asyncio
import os
from pathlib import Path

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel("lab", provider=OpenAIProvider(base_url=os.environ["URL"] + "/v1", api_key="none"))
CALL = 'CALL <<{"name": "add", "arguments": {"a": 2, "b": 3}}>>'


class City(BaseModel):
    name: str


assert Agent(model).run_sync("SAY <<Hello there.>>").output == "Hello there."
agent = Agent(model)


@agent.tool_plain
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


assert agent.run_sync(CALL).output == "The tool said: 5"
told = 'CALL <<{"name": "final_result", "arguments": {"name": "Paris"}}>>'
assert Agent(model, output_type=City).run_sync(told).output == City(name="Paris")


async def stream() -> str:
    async with Agent(model).run_stream("SAY <<Hello there.>>") as run:
        return await run.get_output()


assert asyncio.run(stream()) == "Hello there."

with_mcp = Agent(model, toolsets=[MCPToolset(str(Path(__file__).with_name("recipe_mcp_server.py")))])
assert "5" in with_mcp.run_sync(CALL).output
