"""Requests that run beside each other in an asyncio program."""

import asyncio

from outrider import AsyncLLM, SamplingParams

QUESTIONS = ["Name a river.", "Name a mountain.", "Name a city."]


async def answer(llm: AsyncLLM, question: str) -> None:
    output = await llm.generate([{"role": "user", "content": question}], SamplingParams(max_tokens=24))
    print(question, output.text)


async def main() -> None:
    llm = AsyncLLM("smollm2-135m-instruct", max_batch_size=4)
    try:
        await asyncio.gather(*(answer(llm, question) for question in QUESTIONS))
    finally:
        llm.close()


asyncio.run(main())
