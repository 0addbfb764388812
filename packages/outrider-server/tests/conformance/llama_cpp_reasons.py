"""Why a test of llama.cpp's does not pass here: a way of its own, or nothing that this server could have."""

from __future__ import annotations

import re

HOW = """This command makes this page:

<!-- not run: it needs the source distribution of llama-cpp-python -->
```sh
python -m tests.conformance.llama_cpp llama_cpp_python-0.3.36.tar.gz \\
    --table packages/outrider-server/tests/conformance/llama_cpp.md
```

It takes these tests from the source distribution of llama-cpp-python, without those marked slow:
`tools/server/tests/unit/test_{chat_completion,completion,tokenize,security,ctx_shift,ignore_eos,speculative}.py`.
They are directed at `outrider serve -m stories15m` in place of `llama-server`. *Failed*: something
that this server has, and does otherwise. *Not applicable*: words and numbers of llama.cpp's own test
model (which cannot be had here), its flags, and what this server does not have."""

NOT_HERE, OTHERWISE = "not applicable", "failed"
REASONS = (
    # (test, what it said, outcome, why)
    (
        "cors_proxy|static_assets|local_media|tools_enabled",
        "",
        NOT_HERE,
        "a proxy, pictures or a web interface of its own",
    ),
    (
        "cors_",
        "",
        OTHERWISE,
        "CORS is off here unless asked for, never with credentials, and answers 400 to other origins",
    ),
    ("synth_", "", NOT_HERE, "drafts whose acceptance is made up, to test llama.cpp"),
    (
        "ctx_shift_enabled|with_ctx_shift",
        "",
        NOT_HERE,
        "shifting the context, which forgets: an output ends where its context does",
    ),
    ("chat_template|verbose_debug", "", NOT_HERE, "a template chosen by flag, or shown in the answer"),
    ("", r"startswith\('b'\)|system_fingerprint", NOT_HERE, "expects llama.cpp's build number as fingerprint"),
    (
        "multiple_choices",
        "== 200|got 400",
        OTHERWISE,
        "a field of llama.cpp's on OpenAI's endpoint: refused by name",
    ),
    ("", r"match_regex|Expected .* got", NOT_HERE, "expects the words of llama.cpp's test model"),
    (
        "stream_vs_non_stream|tokens_input",
        "",
        NOT_HERE,
        "a seed or temperature by flag: here they belong to the request",
    ),
    ("", r"delta.*is None|'' is None", OTHERWISE, "expects null where OpenAI sends empty text"),
    (
        "invalid_chat_completion_req",
        "",
        OTHERWISE,
        "two answers in a row are for the model's template to refuse; this one takes them",
    ),
    ("post_sampling|post_backend", "", OTHERWISE, "probabilities after sampling: refused by name"),
    (
        "",
        r"is not a field this server knows|not supported: leave it out",
        OTHERWISE,
        "a field of llama.cpp's on OpenAI's endpoint: refused by name",
    ),
    (
        "",
        "authentication_error|exceed_context_size",
        OTHERWISE,
        "names the kind of error as llama.cpp does; here it is OpenAI's",
    ),
    (
        "long_prompt|long_input",
        "200",
        NOT_HERE,
        "a prompt that is too long in llama.cpp's vocabulary of 512 tokens only",
    ),
    ("", r"assert \d+ == \d+|n_prompt|prompt_n", NOT_HERE, "counts tokens of llama.cpp's test model"),
)


def why(name: str, text: str) -> tuple[str, str]:
    """(failed or not applicable, the reason), by the name of a test and what it said."""
    lines = [line for line in text.splitlines() if line.startswith(("E ", ">"))]
    said = "\n".join(lines)
    for test, pattern, outcome, reason in REASONS:
        if re.search(test, name) and re.search(pattern, said):
            return outcome, reason
    return "failed", next((line[1:].strip()[:120] for line in reversed(lines) if line.startswith("E ")), "")
