set -e
export ANTHROPIC_BASE_URL=$URL ANTHROPIC_AUTH_TOKEN=none ANTHROPIC_MODEL=lab CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
test "$(claude -p 'SAY <<Hello there.>>')" = "Hello there."
ASK='CALL <<{"name": "Bash", "arguments": {"command": "echo $((6 * 7)) hills", "description": "counts"}}>>'
test "$(claude -p "$ASK" --allowedTools Bash)" = "The tool said: 42 hills"
