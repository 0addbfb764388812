set -e
cline auth --provider openai --apikey none --baseurl $URL/v1 --modelid lab
cline 'SAY <<Hello there.>>' 2>&1 | grep "Hello there."
ASK='CALL <<{"name": "run_commands", "arguments": {"commands": ["echo $((6 * 7)) hills"]}}>>'
cline "$ASK" 2>&1 | grep "42 hills"
