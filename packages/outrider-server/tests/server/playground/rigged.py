"""A server that says hostile things, and a browser that notes whatever comes of them."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

HOSTILE = "evil.example"

# Runs before the page's own scripts: every way to be noticed that the payloads use.
TRAPS = """
window.fired = [];
window.fire = (...what) => { window.fired.push(what.join(" ") || "fire"); };
for (const name of ["alert", "confirm", "prompt", "print", "open"]) window[name] = () => { window.fire(name); };
addEventListener("securitypolicyviolation", (event) => {
    window.fired.push(`policy ${event.violatedDirective} ${event.blockedURI}`);
});
"""

# What an answer may be made of, and nothing else. `svg` and its parts are the page's own plots and trees.
BREACHES = """() => {
    const forbidden = "script:not([src^='/playground/']), iframe, frame, object, embed, base, img, video, audio, "
        + "source, picture, portal, math, template, foreignObject, animate, set, use, style, [style*='url'], "
        + "[srcdoc], [ping], "
        + "link:not([href^='/']), meta[http-equiv], form[action], [formaction], [autofocus]:not(#text)";
    const found = [...document.querySelectorAll(forbidden)].map((each) => each.outerHTML.slice(0, 200));
    for (const each of document.querySelectorAll("*")) {
        for (const { name, value } of each.attributes) {
            if (/^on/i.test(name)) found.push(`${each.tagName} ${name}`);
            if (/^(?:xlink:)?href$|^src$|^action$/.test(name) && !/^(?:https?:|mailto:|[/#])/i.test(value.trim())) {
                found.push(`${each.tagName} ${name}=${value}`);
            }
        }
        if (each.matches("a[target]") && !each.relList.contains("noopener")) found.push("a link that knows its opener");
    }
    return [...window.fired, ...found, ...(window.polluted || ({}).polluted ? ["polluted"] : [])];
}"""


class Wire:
    """Notes requests that leave the server's own origin, and lets none of them out."""

    def __init__(self, url: str) -> None:
        self._own = urlsplit(url).netloc
        self.left: list[str] = []
        self.answers: dict[str, Any] = {}  # path -> (status, type, body), in place of the server's

    def prepare(self, context: Any) -> None:
        context.add_init_script(TRAPS)
        context.route("**/*", self._handle)

    def _handle(self, route: Any) -> None:
        target = urlsplit(route.request.url)
        if target.netloc != self._own:
            self.left.append(route.request.url)
            route.abort()
        elif target.path in self.answers:
            status, kind, body = self.answers[target.path]
            route.fulfill(status=status, content_type=kind, body=body)
        else:
            route.continue_()

    def says(self, path: str, body: Any, status: int = 200) -> None:
        self.answers[path] = (status, "application/json", json.dumps(body))

    def streams(self, text: str) -> None:
        """Let the next answers be ``text``: as content, as a token, as a draft, as a call and as its source."""
        source, half = text[:200], len(text) // 2
        draft = {
            "tokens": [1, 2], "texts": [text, text], "parents": [-1, 0], "sources": [source, source],
            "scores": [0.5, 0.5], "accepted": [0], "budget": 2, "proposed": 2,
        }  # fmt: skip
        step = {"token_details": [{"id": 1, "text": text, "origin": "accepted", "source": source}]}
        last = {"token_details": [{"id": 2, "text": text, "origin": "bonus", "source": source}]}
        call = {"index": 0, "id": text, "type": "function", "function": {"name": text, "arguments": text}}
        choices = [
            {"delta": {"content": text[:half]}, **step, "draft_details": [draft]},
            {"delta": {"content": text[half:]}, **last, "draft_details": [draft]},
            {"delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"},
        ]
        speculative = {"num_draft_tokens": 4, "num_accepted_draft_tokens": 2, "mean_acceptance_length": 2}
        end = {
            "choices": [], "usage": {"total_tokens": 3}, "metrics": {"speculative_decoding": speculative},
            "timings": {"predicted_per_second": 9, "predicted_n": 2, "prompt_ms": 1, "predicted_ms": 1, "cache_n": 0},
        }  # fmt: skip
        frames = [*({"choices": [choice]} for choice in choices), end]
        body = "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames) + "data: [DONE]\n\n"
        self.answers["/v1/chat/completions"] = (200, "text/event-stream", body)

    def fails(self, text: str, status: int = 400) -> None:
        self.says("/v1/chat/completions", {"error": {"message": text, "code": text}}, status)
