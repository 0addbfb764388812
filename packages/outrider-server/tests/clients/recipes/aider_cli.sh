set -e
rm -rf aider && mkdir aider && cd aider
git init -q . && echo 'print("a")' > hello.py && git add -A && git -c user.email=a@b -c user.name=n commit -qm first
export OPENAI_API_BASE=$URL/v1 OPENAI_API_KEY=none HOME=$PWD/home
WORDS='SAY <<
hello.py
```
print("outrider")
```
>>'
aider --model openai/lab --no-show-model-warnings --yes-always --no-check-update --analytics-disable --edit-format whole --no-auto-commits --message "$WORDS" hello.py
test "$(cat hello.py)" = 'print("outrider")'
