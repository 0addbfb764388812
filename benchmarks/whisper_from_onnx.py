"""Whisper as ONNX of 8-bit matrices (Optimum's export) -> a folder of Hugging Face's layout in float32.

    python -m benchmarks.whisper_from_onnx FROM TO      FROM holds config.json, tokenizer.json and onnx/

Needs ``onnx``. A matrix is ``(codes - zero point) * scale``, so nothing is lost that the file still has. Matrices have
no names of their own in an export: each has that of the node which multiplies by it.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

Array = NDArray[np.float32]


def _graphs(graph: Any) -> Iterator[Any]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def tensors(path: Path, prefix: str) -> dict[str, Array]:
    """All weights of one file by their canonical names; ``prefix`` is what the export left out."""
    import onnx
    from onnx import numpy_helper

    found: dict[str, Array] = {}
    graphs = list(_graphs(onnx.load(str(path)).graph))
    held = {each.name: numpy_helper.to_array(each) for graph in graphs for each in graph.initializer}

    def numbers(stem: str) -> Array:
        codes, zero = (held[f"{stem}_{part}"].astype(np.float32) for part in ("quantized", "zero_point"))
        return np.asarray((codes - zero) * held[f"{stem}_scale"], np.float32)

    for name, value in held.items():
        stem = re.sub(r"_merged_\d+", "", name)
        if stem.endswith((".weight", ".bias")):
            found[prefix + stem] = np.asarray(value, np.float32)
        elif stem.endswith(".weight_quantized"):
            found[prefix + stem.removesuffix("_quantized")] = numbers(name.removesuffix("_quantized"))
    for graph in graphs:
        for node in graph.node:
            place = re.search(r"(layers\.\d+)/(\w+?)(?:/(\w+_proj))?/MatMul_quant$", node.name)
            matrix = next((each for each in node.input if each.endswith("_quantized") and each in held), None)
            if node.op_type == "MatMulInteger" and place and matrix:
                owner = "model.decoder." if "decoder" in node.name else prefix
                name = owner + ".".join(part for part in place.groups() if part) + ".weight"
                found[name] = np.ascontiguousarray(numbers(matrix.removesuffix("_quantized")).T)
    return found


def main(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    encoder = tensors(source / "onnx" / "encoder_model_quantized.onnx", "model.encoder.")
    decoder = tensors(source / "onnx" / "decoder_model_merged_quantized.onnx", "")
    save_file(encoder | decoder, target / "model.safetensors", {"format": "pt"})
    for name in ("config", "generation_config", "preprocessor_config", "tokenizer", "tokenizer_config"):
        shutil.copy(source / f"{name}.json", target / f"{name}.json")
    print(f"{target}: {len(encoder)} tensors of the encoder, {len(decoder)} of the decoder")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
