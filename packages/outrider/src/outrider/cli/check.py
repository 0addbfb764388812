"""``outrider models check``: what a model file is, whether it runs here, and with what, from its headers alone."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from outrider.cli.measured import measured
from outrider.config.combination import USUAL, WITH_ASSISTANT, WITH_DSPARK, WITH_OWN_HEAD
from outrider.drafters.heads.find import shipped_heads
from outrider.drafters.heads.fingerprint import TargetFingerprint, fingerprint_rows
from outrider.drafters.trained.assistant_files import find_assistant
from outrider.drafters.trained.dspark_files import find_dspark
from outrider.drafters.trained.mtp_head import LEARNED, LOWEST
from outrider.engine.forecast import Forecast, forecast_error, forecast_speed, measured_with_drafts, memory_needed
from outrider.errors import OutriderError
from outrider.models.config import ModelConfig
from outrider.models.layer_kinds import num_layer_weights
from outrider.models.native_llama import require_dimensions
from outrider.models.native_names import matrix_names, router_names
from outrider.models.native_packer import Packer
from outrider.native.context import NativeContext
from outrider.native.library import library
from outrider.native.measure import measure_rates
from outrider.native.processor import num_threads
from outrider.native.weights import StoredRows
from outrider.utils.json_files import read_json_object
from outrider.weights.families.elsewhere import family_extension, other_family
from outrider.weights.files.checkpoint import Checkpoint
from outrider.weights.files.safetensors import read_header
from outrider.weights.folder import gguf_weights, open_checkpoint
from outrider.weights.gguf.draft_head import find_draft_head, with_draft_head
from outrider.weights.gguf.reader import open_gguf
from outrider.weights.gguf.shards import gguf_files, read_gguf
from outrider.weights.hub.catalog import file_of, gguf_folder, lone_gguf, real_place, resolve
from outrider.weights.packed import packed_folder

__all__ = ["Facts", "check_model"]

Facts = dict[str, Any]


def check_model(ref: str) -> Facts:
    """The facts on a model, as one JSON-ready object; no weight is read, and nothing is prepared.

    ``runs`` is ``native``, ``torch``, the extension that computes the model, or None; then ``why`` is the reason.
    Sizes are in bytes, rates in tokens a second.

    Raises as ``resolve`` if there is no model at this place.
    """
    named = file_of(ref)
    place = Path(os.path.expanduser(named))
    gguf = place if named != ref or (place.is_file() and place.suffix == ".gguf") else None
    if gguf is None:
        gguf = lone_gguf(place) if place.is_dir() else None
    if gguf is not None:
        file = real_place(gguf)
        facts = _run({"name": ref}, _of_gguf, file, lambda: _open_file(file))
        return _with_measured(facts | _assistant(facts, str(file)), gguf_folder(file))
    folder = resolve(ref)
    inside = gguf_weights(folder)
    facts = _run({"name": ref}, _of_gguf if inside else _of_folder, inside or folder, lambda: _open_folder(folder))
    return _with_measured(facts | _assistant(facts, str(folder)), folder)


def _with_measured(facts: Facts, folder: Path) -> Facts:
    """``facts`` with the times of earlier starts, and the error of the forecast by them."""
    facts |= measured(folder)
    if "forecast" in facts and "tokens_per_s" in facts:
        forecast, by_rows = facts["forecast"], facts["measured_ms_by_rows"]
        forecast["error"] = forecast_error(forecast, by_rows["1"])
        forecast["with_drafts"] = measured_with_drafts(by_rows, forecast["draft_token_ms"])
    return facts


def _assistant(facts: Facts, place: str) -> Facts:
    """The drafts of a model that has an assistant (Gemma 4) or a DSpark head beside it; empty: it has none."""
    if facts["runs"] != "native":
        return {}
    if facts["family"] == "gemma4_text" and find_assistant(place) is not None:
        return {"draft": WITH_ASSISTANT}
    return {"draft": WITH_DSPARK} if facts["draft"] == USUAL and find_dspark(place) is not None else {}


def _run(facts: Facts, read: Callable[[Path], Facts], path: Path, open_it: Callable[[], Facts]) -> Facts:
    """``facts`` with those of the headers, and of the model if it runs."""
    facts |= {"format": None, "architecture": None, "runs": None, "why": None}
    try:
        facts |= read(path)
        facts |= open_it()
    except OutriderError as error:
        facts |= {"runs": None, "why": str(error)}
    return facts


def _of_gguf(path: Path) -> Facts:
    files = gguf_files(path)
    header = read_gguf(path)
    sizes = Counter[str]()
    for tensor in header.tensors.values():
        sizes[tensor.type.name] += tensor.stop - tensor.start
    return {
        "format": "GGUF" if len(files) == 1 else f"GGUF in {len(files)} files",
        "architecture": header.metadata.get("general.architecture"),
        "parameters": sum(math.prod(tensor.shape) for tensor in header.tensors.values()),
        "file_bytes": sum(file.stat().st_size for file in files),
        "types": _shares(sizes),
        "chat_template": "tokenizer.chat_template" in header.metadata,
    }


def _of_folder(folder: Path) -> Facts:
    files = sorted(folder.glob("*.safetensors"))
    infos = [info for path in files for info in read_header(path).values()]
    sizes = Counter[str]()
    for info in infos:
        sizes[info.dtype] += math.prod(info.shape)
    names = {"chat_template.jinja", "chat_template.json"} & {path.name for path in folder.iterdir()}
    config = folder / "tokenizer_config.json"
    return {
        "format": "safetensors",
        "architecture": read_json_object(folder / "config.json").get("model_type"),
        "parameters": sum(math.prod(info.shape) for info in infos),
        "file_bytes": sum(path.stat().st_size for path in files),
        "types": _shares(sizes),
        "chat_template": bool(names) or (config.exists() and "chat_template" in read_json_object(config)),
    }


def _shares(sizes: Mapping[str, int]) -> dict[str, float]:
    """Each type's share of the weights' bytes, the largest first."""
    total = max(1, sum(sizes.values()))
    return {name: round(size / total, 4) for name, size in sorted(sizes.items(), key=lambda item: -item[1])}


def _open_file(gguf: Path) -> Facts:
    checkpoint, head = open_gguf(gguf), find_draft_head(gguf)
    return _ours(
        checkpoint if head is None else with_draft_head(checkpoint, head), packed_folder(gguf_folder(gguf)).name
    )


def _open_folder(folder: Path) -> Facts:
    other = other_family(folder)
    if other is None:
        return _ours(open_checkpoint(folder), packed_folder(folder).name)
    family_extension(other, folder)
    return {"runs": other}


def _ours(checkpoint: Checkpoint, own: str) -> Facts:
    """Of a model whose code is ours: how it runs on the processor, its drafts, memory and speed."""
    config = checkpoint.config
    native = library() is not None
    facts: Facts = {"runs": "native" if native else "torch", "family": config.family, "context": config.max_seq_len}
    facts["draft"] = WITH_OWN_HEAD if config.mtp_layers == 1 and native else USUAL
    if not native:
        return facts
    require_dimensions(config)
    facts["heads"] = sorted(shipped_heads(_fingerprint(checkpoint)))
    packer = Packer(checkpoint.stored, None)
    head = "model.embed_tokens" if config.tie_embeddings else "lm_head"
    names = [*matrix_names(config), *router_names(config), head]
    sizes = {name: packer.plan(name).nbytes for name in names}
    memory = memory_needed(config, sum(sizes.values()))
    return facts | memory | _speed(config, sizes, memory, own)


def _fingerprint(checkpoint: Checkpoint) -> TargetFingerprint:
    rows = StoredRows(checkpoint.stored["model.embed_tokens.weight"])
    return TargetFingerprint.of(checkpoint.config, rows.rows(fingerprint_rows(checkpoint.config.vocab_size)))


def _speed(config: ModelConfig, sizes: Mapping[str, int], memory: Mapping[str, int], own: str) -> Facts:
    """The limits that this machine's measured rates set, and a forecast between them."""
    rates = measure_rates(NativeContext(num_threads()))
    multiplied = num_layer_weights(config, used=True)
    read = Forecast.of(config, sizes, 0, rates, 1.0).bytes_read()
    return {
        "bytes_read_per_token": read,
        "read_gb_s": rates.read_gb_s,
        "int8_gmac_s": rates.int8_gmac_s,
        "threads": num_threads(),
        "tokens_per_s_at_most": round(1 / rates.memory_limit(read), 1),
        "prompt_tokens_per_s_at_most": round(1 / rates.arithmetic_limit(multiplied, 1), 1),
        "forecast": forecast_speed(
            config, sizes, _draft_bytes(config, sizes), rates, memory["longest_text_that_fits"], own
        ),
    }


def _draft_bytes(config: ModelConfig, sizes: Mapping[str, int]) -> int:
    """Bytes that a token of the model's own draft head reads: a layer, and its part of the LM head; 0 without one."""
    if config.mtp_layers != 1:
        return 0
    *layers, head = sizes.values()
    rows = min(1.0, (LOWEST + LEARNED) / config.vocab_size)
    return round(sum(layers) / config.num_layers + rows * head)
