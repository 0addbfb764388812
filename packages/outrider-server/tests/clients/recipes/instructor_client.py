import os

import instructor
import openai
from pydantic import BaseModel


class City(BaseModel):
    name: str
    people: int


plain = openai.OpenAI(base_url=os.environ["URL"] + "/v1", api_key="none")
SAY, CALL = (
    'SAY <<{"name": "Paris", "people": 2}>>',
    'CALL <<{"name": "City", "arguments": {"name": "Paris", "people": 2}}>>',
)
for mode, text in (("TOOLS", CALL), ("JSON", SAY), ("JSON_SCHEMA", SAY)):
    client = instructor.from_openai(plain, mode=instructor.Mode[mode])
    messages = [{"role": "user", "content": text}]
    city = client.chat.completions.create(model="lab", messages=messages, response_model=City)
    assert city.model_dump() == {"name": "Paris", "people": 2}, mode
