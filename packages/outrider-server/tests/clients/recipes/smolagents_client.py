import os

from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

model = OpenAIServerModel("lab", api_base=os.environ["URL"] + "/v1", api_key="none")


@tool
def add(a: int, b: int) -> int:
    """Add.

    Args:
        a: one number
        b: the other
    """
    return a + b


agent = ToolCallingAgent(tools=[add], model=model, max_steps=3)
assert agent.run('CALL <<{"name": "final_answer", "arguments": {"answer": "5"}}>>') == "5"
code = "SAY <<<code>\nfinal_answer(add(2, 3))\n</code>>>"
assert CodeAgent(tools=[add], model=model, max_steps=2).run(code) == 5
