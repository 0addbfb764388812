"""A user cache whose built-in models are small stand-ins, so that examples run without network and in no time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from outrider.utils.user_cache import cache_root
from outrider.weights.hub.builtin import BUILTINS
from outrider.weights.hub.manifest import write_manifest
from tests.docs.snippets import ROOT

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
STAND_INS = {"smollm2-135m-instruct": "target", "tinyllama-1.1b-chat": "target", "stories15m": "distilled"}


def prepare(cache: Path) -> None:
    """Fill ``cache`` as ``outrider models pull`` would, with models of the laboratory under the built-in names."""
    for name, model in STAND_INS.items():
        folder = cache / "models" / name
        folder.mkdir(parents=True)
        lab = ROOT / "tests" / "data" / "lab" / model
        for file in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
            shutil.copyfile(lab / file, folder / file)
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}))
        write_manifest(folder, {"name": name, "sha256": BUILTINS[name].sha256})
    native = cache_root() / "native"  # or the library would be compiled again
    native.mkdir(parents=True, exist_ok=True)
    (cache / "native").symlink_to(native)
