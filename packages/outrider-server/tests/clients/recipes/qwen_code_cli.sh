set -e
export OPENAI_BASE_URL=$URL/v1 OPENAI_API_KEY=none OPENAI_MODEL=lab
test "$(qwen -p 'SAY <<Hello there.>>')" = "Hello there."
ASK='CALL <<{"name": "run_shell_command", "arguments": {"command": "echo $((6 * 7)) hills", "is_background": false}}>>'
qwen -y -p "$ASK" | grep "42 hills"
