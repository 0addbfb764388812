"""A draft head of the target's own kind is trained, loads with --heads or in the target's files, and is accepted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from outrider import LLM, SamplingParams
from outrider.config.engine import Implementation
from outrider.errors import ConfigError, IncompatibleDraftError, ModelFormatError
from outrider.native.library import library
from outrider_torch.models.llama import LlamaModel
from outrider_train.kinds.mtp import MtpTask, mtp_trainer
from outrider_train.options import HeadOptions
from outrider_train.report.card import write_report
from outrider_train.setup import DataOptions, TrainingSetup
from outrider_train.target import reader
from outrider_train.trainer import Trainer
from tests.model_folders import model_folder
from tests.tokenizer.vocabularies import byte_level
from tests.training import small

pytestmark = pytest.mark.skipif(library() is None, reason="recurrent layers need the native library")

_DIMENSIONS = {
    **{"vocab_size": 330, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "head_dim": 16},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None, "tie_word_embeddings": True},
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with recurrent layers that has learned to go round the cycle, without a draft head."""
    folder = byte_level(tmp_path_factory.mktemp("hybrid"))
    torch.manual_seed(0)
    model = transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**_DIMENSIONS))
    learn(model)
    model.save_pretrained(folder)
    return folder


def learn(model: Any) -> None:
    """Teach it the cycle."""
    documents = [line.document for line in small.lines(24)]
    ids = torch.tensor([d.ids[-19:] for d in documents if d is not None])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(40):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.4


def trainer(target: Path, out: Path, *, epochs: int = 10, **options: object) -> tuple[Trainer, MtpTask]:
    data = DataOptions((), held_out=0.2, top_k=8, context=8)
    setup = TrainingSetup(str(target), data, 0, small.lines())
    made = HeadOptions("mtp", **{"ttt_steps": 3, "depth": 3, **options})  # type: ignore[arg-type]
    return mtp_trainer(setup, made, small.train_options(epochs=epochs, lr=5e-3), out)


@pytest.fixture(scope="module")
def head(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mtp") / "head"
    made, _ = trainer(target, folder)
    history = made.run().history
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    assert min(history[-1]["alpha_by_position"]) > 0.9
    write_report(made, name="head", about={"seed": 0})
    return folder


def acceptance(model: Path, implementation: Implementation = "native", heads: Sequence[str] = ()) -> float:
    """Of drafts in an answer, which equals the plain one."""
    llm = LLM(
        str(model), implementation=implementation, draft="mtp", spec_length=3, dtype="float32", threads=1, heads=heads
    )
    prompt = list(small.lines()[0].document.ids[:9])  # type: ignore[union-attr]
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    out = llm.generate([prompt], params)[0]
    assert out.token_ids == llm.generate([prompt], params, speculation=None)[0].token_ids
    assert out.stats.draft_error is None
    return out.stats.draft_acceptance_rate or 0.0


def test_a_trained_head_drafts_in_place_of_one_in_the_targets_files(target: Path, head: Path) -> None:
    assert acceptance(target, heads=[str(head)]) > 0.85
    assert "α" in (head / "README.md").read_text()
    said = json.loads((head / "config.json").read_text())
    assert said["kind"] == "mtp"
    assert len(said["acceptance"]) == 3
    assert said["training"]["metrics"]["mean_acceptance_length"] > 2


def test_its_tensors_fit_the_targets_files_and_are_tuned_from_there(target: Path, head: Path, tmp_path: Path) -> None:
    """Order of rows and offset of norms are those of published files: a slip would end acceptance."""
    both = tmp_path / "both"
    shutil.copytree(target, both)
    tensors = load_file(target / "model.safetensors") | load_file(head / "model.safetensors")
    save_file(tensors, both / "model.safetensors", metadata={"format": "pt"})
    assert acceptance(both) > 0.85
    best = json.loads((head / "report.json").read_text())["metrics"]["loss"]
    tuned, _ = trainer(both, tmp_path / "tuned", epochs=1)
    further, _ = trainer(target, tmp_path / "further", epochs=1, start_from=str(head))
    assert tuned.measure().loss == pytest.approx(best, rel=0.05, abs=1e-3)
    assert further.measure().loss == pytest.approx(best, rel=0.05, abs=1e-3)


def test_a_llama_gets_a_head_that_begins_as_its_last_layer(tmp_path: Path) -> None:
    llama = model_folder(tmp_path / "llama")
    made, task = trainer(llama, tmp_path / "head", epochs=2)
    assert made.measure().loss < trainer(llama, tmp_path / "fresh", fresh=True)[0].measure().loss * 1.5
    history = made.run().history
    assert history[-1]["loss"] < history[0]["loss"]
    assert task.layer.layer.self_attn.q_norm is None
    acceptance(llama, heads=[str(tmp_path / "head")])


def test_heads_of_other_targets_and_damaged_ones_are_refused(target: Path, head: Path, tmp_path: Path) -> None:
    llama = model_folder(tmp_path / "llama")
    with pytest.raises(IncompatibleDraftError, match="another target"):
        LLM(str(llama), draft="mtp", heads=[str(head)], threads=1)
    with pytest.raises(IncompatibleDraftError, match="another target"):
        trainer(llama, tmp_path / "out", start_from=str(head))
    damaged = tmp_path / "damaged"
    shutil.copytree(head, damaged)
    tensors = load_file(head / "model.safetensors")
    tensors["mtp.fc.weight"] = tensors["mtp.fc.weight"][:, :-1].contiguous()
    save_file(tensors, damaged / "model.safetensors")
    with pytest.raises(ModelFormatError, match=r"mtp\.fc\.weight"):
        LLM(str(target), implementation="native", draft="mtp", heads=[str(damaged)], threads=1)
    (damaged / "config.json").write_text('{"format": 1, "kind": "mtp", "target": {}}')
    with pytest.raises(ModelFormatError, match=r"config\.json"):
        LLM(str(target), implementation="native", draft="mtp", heads=[str(damaged)], threads=1)


_EXPERTS = {
    **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "shared_expert_intermediate_size": 32,
}


def sparse_target(folder: Path, learned: bool) -> Path:
    byte_level(folder)
    torch.manual_seed(0)
    model = transformers.Qwen3_5MoeForCausalLM(transformers.Qwen3_5MoeTextConfig(**_DIMENSIONS, **_EXPERTS))
    if learned:
        learn(model)
    model.save_pretrained(folder)
    return folder


def test_a_head_has_the_experts_of_its_target(tmp_path: Path) -> None:
    """One that was not trained yet: its layer is the target's last with attention, as the file's reader has it."""
    folder = sparse_target(tmp_path / "sparse", learned=False)
    made, task = trainer(folder, tmp_path / "head", epochs=1)
    layer = task.layer.layer
    before = {name: value.clone() for name, value in layer.mlp.state_dict().items()}
    routers = {"gate.weight", "shared_expert_gate.weight"}
    assert routers | {f"experts.{e}.up_proj.weight" for e in range(4)} < set(before)
    x = torch.randn(5, 32, dtype=torch.float32)
    theirs = transformers.Qwen3_5MoeForCausalLM.from_pretrained(folder).model.layers[3].mlp
    assert torch.allclose(layer.mlp.to(torch.float32)(x), theirs(x[None])[0], atol=1e-5)
    loss = made.measure().loss
    made.run()
    assert made.measure().loss < loss
    changed = {name for name, value in layer.mlp.state_dict().items() if not torch.equal(value, before[name])}
    assert routers < changed


def test_torch_reads_the_features_that_the_native_library_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sparse_target(tmp_path / "sparse", learned=False)
    document = small.lines()[0].document
    assert document is not None
    found = []
    for there in (library, lambda: None):
        monkeypatch.setattr(reader, "library", there)
        read = reader.target_reader(folder, (), 4, len(document.ids), torch.device("cpu"))
        assert isinstance(read._model, LlamaModel) == (there is not library)
        found.append(read.read(document))
    (rows, ids, probs), (own, own_ids, own_probs) = found
    assert torch.nn.functional.cosine_similarity(rows.float(), own.float()).min() > 0.99
    assert float((ids[:, 0] == own_ids[:, 0]).float().mean()) > 0.7
    torch.testing.assert_close(probs.float(), own_probs.float(), atol=0.02, rtol=0.2)


@pytest.mark.slow
def test_a_head_with_experts_is_trained_from_end_to_end(tmp_path: Path) -> None:
    target = sparse_target(tmp_path / "sparse", learned=True)
    made, _ = trainer(target, tmp_path / "head", fresh=True)
    history = made.run().history
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    assert acceptance(target, heads=[str(tmp_path / "head")]) > 0.8
    assert acceptance(target, heads=[str(tmp_path / "head")], implementation="torch") > 0.8
    both = tmp_path / "both"
    shutil.copytree(target, both)
    tensors = load_file(target / "model.safetensors") | load_file(tmp_path / "head" / "model.safetensors")
    save_file(tensors, both / "model.safetensors", metadata={"format": "pt"})
    assert acceptance(both) > 0.8
    tuned, _ = trainer(both, tmp_path / "tuned", epochs=1)
    assert tuned.measure().loss == pytest.approx(history[-1]["loss"], rel=0.3)


def test_targets_whose_experts_have_biases_are_refused(tmp_path: Path) -> None:
    own = {**_DIMENSIONS, "num_local_experts": 4, "num_experts_per_tok": 2}
    own = {name: value for name, value in own.items() if not name.startswith(("linear", "rope"))}
    folder = byte_level(tmp_path / "sparse")
    transformers.GptOssForCausalLM(transformers.GptOssConfig(**own)).save_pretrained(folder)
    with pytest.raises(ConfigError, match="cannot be trained"):
        trainer(folder, tmp_path / "out")
