import asyncio
import os
import sys
from pathlib import Path

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from agents.mcp import MCPServerStdio
from openai import AsyncOpenAI

set_tracing_disabled(True)
CALL = 'CALL <<{"name": "add", "arguments": {"a": 2, "b": 3}}>>'


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def main() -> None:
    client = AsyncOpenAI(base_url=os.environ["URL"] + "/v1", api_key="none")
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        model = kind(model="lab", openai_client=client)
        assert (await Runner.run(Agent(name="a", model=model), "SAY <<Hello there.>>")).final_output == "Hello there."
        agent = Agent(name="a", instructions="Use tools.", model=model, tools=[add])
        assert (await Runner.run(agent, CALL)).final_output == "The tool said: 5"
        streamed = Runner.run_streamed(agent, CALL)
        async for _ in streamed.stream_events():
            pass
        assert streamed.final_output == "The tool said: 5"
        server = Path(__file__).with_name("recipe_mcp_server.py")
        async with MCPServerStdio(params={"command": sys.executable, "args": [str(server)]}) as tools:
            with_mcp = Agent(name="a", model=model, mcp_servers=[tools])
            assert "5" in (await Runner.run(with_mcp, CALL)).final_output


asyncio.run(main())
