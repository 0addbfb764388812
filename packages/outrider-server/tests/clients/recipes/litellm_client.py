import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

import litellm
import openai

url = os.environ["URL"]
HELLO = [{"role": "user", "content": "SAY <<Hello there.>>"}]
CALL = [{"role": "user", "content": 'CALL <<{"name": "add", "arguments": {"a": 2, "b": 3}}>>'}]
ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": ADD}}
WAYS = {
    "openai/lab": f"{url}/v1",
    "hosted_vllm/lab": f"{url}/v1",
    "anthropic/lab": url,
    "ollama_chat/lab": url,
}
for name, base in WAYS.items():
    asked = {"model": name, "api_base": base, "api_key": "none"}
    assert litellm.completion(**asked, messages=HELLO).choices[0].message.content == "Hello there.", name
    parts = litellm.completion(**asked, messages=HELLO, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == "Hello there.", name
    call = litellm.completion(**asked, messages=CALL, tools=[TOOL]).choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"a": 2, "b": 3}, name

key = f"sk-{secrets.token_hex(16)}"
Path("litellm.yaml").write_text(f"""model_list:
  - model_name: any
    litellm_params: {{model: openai/lab, api_base: {url}/v1, api_key: none}}
general_settings: {{master_key: {key}}}
""")
command = [str(Path(sys.executable).with_name("litellm")), "--config", "litellm.yaml", "--port", "8765"]
proxy = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    client = openai.OpenAI(base_url="http://127.0.0.1:8765", api_key=key, max_retries=0)
    for _ in range(60):
        time.sleep(1)
        try:
            client.models.list()
            break
        except openai.APIConnectionError:
            continue
    assert client.chat.completions.create(model="any", messages=HELLO).choices[0].message.content == "Hello there."
finally:
    proxy.kill()
    proxy.wait()
