set -e
export LLM_USER_PATH=$PWD/llm && mkdir -p $LLM_USER_PATH
cat > $LLM_USER_PATH/extra-openai-models.yaml <<YAML
- model_id: outrider
  model_name: lab
  api_base: $URL/v1
  supports_tools: true
  supports_schema: true
YAML
llm keys set openai --value none
test "$(llm -m outrider 'SAY <<Hello there.>>')" = "Hello there."
test "$(llm -m outrider --no-stream 'SAY <<Hello there.>>')" = "Hello there."
test "$(llm -m outrider --schema 'name, people int' 'SAY <<{"name": "Paris", "people": 2}>>')" = '{"name": "Paris", "people": 2}'
test "$(llm -m outrider --functions 'def add(a: int, b: int): return a + b' 'CALL <<{"name": "add", "arguments": {"a": 2, "b": 3}}>>')" = "The tool said: 5"
