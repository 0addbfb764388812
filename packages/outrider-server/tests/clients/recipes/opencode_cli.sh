set -e
cat > opencode.json <<JSON
{"provider": {"outrider": {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "$URL/v1"}, "models": {"lab": {}}}},
 "model": "outrider/lab"}
JSON
echo 'SAY <<Hello there.>>' | opencode run 2>&1 | grep "Hello there."
ASK='CALL <<{"name": "bash", "arguments": {"command": "echo $((6 * 7)) hills", "description": "counts"}}>>'
echo "$ASK" | opencode run 2>&1 | grep "The tool said: 42 hills"
