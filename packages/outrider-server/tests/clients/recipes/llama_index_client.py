import os

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

llm = OpenAILike(
    model="lab", api_base=os.environ["URL"] + "/v1", api_key="none", is_chat_model=True, is_function_calling_model=True
)


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


assert llm.chat([ChatMessage("SAY <<Hello there.>>")]).message.content == "Hello there."
assert [part.delta for part in llm.stream_chat([ChatMessage("SAY <<Hello there.>>")])]
assert llm.complete("SAY <<Hello there.>>").text == "Hello there."
called = llm.predict_and_call(
    [FunctionTool.from_defaults(add)], 'CALL <<{"name": "add", "arguments": {"a": 2, "b": 3}}>>'
)
assert str(called) == "5"
