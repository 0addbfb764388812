set -e
cat > continue.yaml <<YAML
name: local
version: 0.0.1
schema: v1
models:
  - {name: outrider, provider: openai, model: lab, apiBase: "$URL/v1", apiKey: none}
YAML
test "$(cn --config continue.yaml -p 'SAY <<Hello there.>>')" = "Hello there."
ASK='CALL <<{"name": "Bash", "arguments": {"command": "echo $((6 * 7)) hills"}}>>'
cn --config continue.yaml --auto -p "$ASK" | grep -x "The tool said: 42 hills"
