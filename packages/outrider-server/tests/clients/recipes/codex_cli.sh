set -e
mkdir -p ~/.codex
cat > ~/.codex/config.toml <<TOML
model = "lab"
model_provider = "outrider"

[model_providers.outrider]
name = "Outrider"
base_url = "$URL/v1"
TOML
test "$(codex exec --skip-git-repo-check 'SAY <<Hello there.>>' 2>&1 | tail -n 1)" = "Hello there."
ASK='CALL <<{"name": "exec_command", "arguments": {"cmd": "echo $((6 * 7)) hills"}}>>'
codex exec --skip-git-repo-check "$ASK" 2>&1 | tail -n 1 | grep -x "42 hills"
