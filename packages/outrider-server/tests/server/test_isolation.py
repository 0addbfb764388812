"""What one caller says, no other finds out: two worlds in which a victim said A or B look the same to an attacker.

The attacker has a key of its own, knows what A and B would be, asks for both, and sees all that a response tells: token
ids, where each came from, and every count but times. It attacks through every draft source there is.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider import LLM, SamplingParams, SpeculationParams, StructuredOutput
from outrider.config import SOURCES, ModelOptions
from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.fingerprint import target_fingerprint
from outrider.drafters.heads.masked import DSpark
from outrider.weights.loader import load_model
from outrider_torch.heads import make_head, save_head
from tests.server.live import Live
from tests.server.scripted import saying

COMPLETIONS = "/v1/completions"
LAYER = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 8, "intermediate_size": 16}
DRAFTING = [name for name, source in SOURCES.items() if source.builder is not None and not source.in_model_files]
ROUNDS = 6  # of each source, both worlds in each: over 200 trials
KEYS = tuple(f"key-{i}" for i in range(4 * ROUNDS * len(DRAFTING) + 8))
PROMPT, ANSWER = 20, 6  # tokens
Transcript = list[dict[str, Any]]


def save_heads(parent: Path, folder: Path) -> list[str]:
    """A random head for each source that needs one."""
    target = target_fingerprint(load_model(folder, ModelOptions(dtype="float32")), "tiny")
    paths = []
    for kind in (source.head_kinds[0] for source in SOURCES.values() if source.head_kinds):
        dims: dict[str, Any] = {"heads": 2}
        if kind.startswith("eagle"):
            dims = LAYER | ({"feature_layers": (1, 2), "draft_vocab_size": 30} if kind == "eagle3" else {})
        if kind == "dflash":
            dims |= LAYER | {"feature_layers": (1, 2), "draft_vocab_size": 30, "selector_rank": 4}
        if kind == "dspark":
            spark = DSpark(rank=4, confidence=True, confidence_reads_token=True)
            dims |= LAYER | {"feature_layers": (1, 2), "mask_token_id": 3, "dspark": spark}
        torch.manual_seed(1)
        sizes = {"hidden_size": target.hidden_size, "vocab_size": target.vocab_size}
        config = HeadConfig(kind=kind, target=target, **(sizes | dims))
        save_head(parent / kind, make_head(config), config)
        paths.append(str(parent / kind))
    return paths


@pytest.fixture(scope="module")
def heads(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return save_heads(tmp_path_factory.mktemp("heads"), folder)


def load(folder: Path, heads: list[str], **options: Any) -> LLM:
    """With every source in the registry."""
    options |= {"draft": "eagle,models", "heads": heads, "draft_model": [str(folder)] * 2}
    llm = LLM(str(folder), max_batch_size=4, threads=1, **options)
    assert set(llm.drafters) == set(DRAFTING)
    return llm


@pytest.fixture(scope="module")
def llm(folder: Path, heads: list[str]) -> LLM:
    """Lent to one server after another."""
    return load(folder, heads)


SERVERS: dict[str, dict[str, Any]] = {
    "apart": {"api_keys": KEYS},
    "sharing": {"api_keys": KEYS[:2], "share_across_keys": True},
}


@pytest.fixture(scope="module")
def server(llm: LLM, request: pytest.FixtureRequest) -> Iterator[Live]:
    """One at a time, as they are lent the same engine."""
    with Live(llm, **SERVERS[request.param], allow_lossy=True) as server:
        yield server


apart = pytest.mark.parametrize("server", ["apart"], indirect=True)
sharing = pytest.mark.parametrize("server", ["sharing"], indirect=True)


@dataclass
class World:
    """Two things that a victim may say, and what it then says."""

    server: Live
    source: str
    seed: int

    def __post_init__(self) -> None:
        rng = random.Random(f"{self.source} {self.seed}")
        vocabulary = range(2, self.server.service.tokenizer.vocab_size)
        self.candidates = [rng.choices(vocabulary, k=PROMPT) for _ in range(2)]

    def ask(self, key: str, prompt: Sequence[int], **options: Any) -> dict[str, Any]:
        body = {
            "prompt": list(prompt),
            "max_tokens": ANSWER,
            "ignore_eos": True,
            "seed": self.seed,
            "token_details": True,
            "draft_details": True,
            "speculation": {"draft": self.source, "spec_length": 4},
        }
        if SOURCES[self.source].request_option == "prediction":
            body["prediction"] = {"type": "content", "content": "hello world"}
        if SOURCES[self.source].request_option == "structured":
            body |= {"structured_outputs": {"regex": "(hello ){9}"}, "ignore_eos": False}
        return self.server.post(COMPLETIONS, body | options, headers={"X-Api-Key": key})

    def attack(self, said: int, victim: str, attacker: str) -> Transcript:
        """The victim says one of two things; then the attacker says both."""
        self.ask(victim, self.candidates[said])
        return [visible(self.ask(attacker, prompt)) for prompt in self.candidates]


def visible(answer: dict[str, Any]) -> dict[str, Any]:
    """All that an answer says, but names and times."""
    (choice,) = answer["choices"]
    times = {"prompt_ms", "predicted_ms", "prompt_per_second", "predicted_per_second"}
    timings = {name: value for name, value in answer["timings"].items() if name not in times}
    return {"choice": choice, "usage": answer["usage"], "metrics": answer["metrics"], "timings": timings}


def guess(seen: Transcript) -> int | None:
    """Which of the two was said: the one that was cached, or whose drafts were accepted; None where neither was."""

    def known(answer: dict[str, Any]) -> tuple[int, int]:
        return answer["timings"]["cache_n"], answer["timings"]["draft_n_accepted"]

    first, second = seen
    return None if known(first) == known(second) else int(known(second) > known(first))


keys = iter(KEYS)


@pytest.mark.parametrize("source", DRAFTING)
def test_neighbours_in_a_batch_change_nothing_that_is_counted(llm: LLM, source: str) -> None:
    """An attacker's request beside a victim's, and alone, gives the same tokens and the same counts."""
    rng = random.Random(source)
    prompts = [rng.choices(range(2, llm.tokenizer.vocab_size), k=PROMPT) for _ in range(2)]
    form = StructuredOutput(regex="(hello ){9}") if SOURCES[source].request_option == "structured" else None
    params = SamplingParams(max_tokens=24, seed=1, ignore_eos=form is None, structured=form)
    prediction = prompts[0] if source == "prediction" else None
    speculation = SpeculationParams(draft=source, spec_length=3, prediction=prediction)

    def run(*prompts: Sequence[int], trial: str) -> tuple[list[int], list[tuple[int, int]], int]:
        requests = [
            llm.request(prompt, params, speculation, cache_salt=f"{trial} {i}", tenant=str(i))
            for i, prompt in enumerate(prompts)
        ]
        for request in requests:
            llm.engine.add(request)
        while llm.engine.busy:
            llm.engine.step()
        first = requests[0]
        return list(first.output), first.stats.rounds, first.stats.cached_prompt_tokens

    assert run(prompts[0], trial="alone") == run(*prompts, trial="beside") == run(prompts[0], prompts[0], trial="same")


@apart
@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, ROUNDS), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("source", DRAFTING)
def test_two_worlds_look_the_same_through_every_source(server: Live, source: str, seeds: range) -> None:
    assert seeds
    for seed in seeds:
        world = World(server, source, seed)
        seen = [world.attack(said, next(keys), next(keys)) for said in (0, 1)]
        assert seen[0] == seen[1]


@sharing
@pytest.mark.parametrize("seeds", [range(100, 101), pytest.param(range(101, 103), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("source", DRAFTING)
def test_the_attack_succeeds_where_keys_share(server: Live, source: str, seeds: range) -> None:
    assert seeds
    for seed in seeds:
        for said in (0, 1):
            world = World(server, source, 2 * seed + said)
            assert guess(world.attack(said, *KEYS[:2])) == said


@pytest.mark.usefixtures("small_blocks")
def test_a_paged_cache_keeps_them_apart_too(folder: Path) -> None:
    with Live(LLM(str(folder), threads=1, kv_cache="paged"), api_keys=KEYS[:8]) as server:
        for seed in (0, 1):
            world = World(server, "suffix", seed)
            seen = [world.attack(said, *KEYS[i : i + 2]) for said, i in ((0, 4 * seed), (1, 4 * seed + 2))]
            assert seen[0] == seen[1]


SECRET = "the safe in the hall opens with nine four seven one two and the key to the garden gate lies under a blue pot"


def recovered(server: Live, victim: str, attacker: str, salt: str) -> str:
    """What an attacker reads of the victim's answer who knows how it begins: accepted drafts, one token after another.

    Its requests are for two tokens, of contexts where the target holds all tokens equally likely, so that a lenient
    verifier takes any draft.
    """
    llm, tokens = server.service.engine.llm, server.service.tokenizer.encode(SECRET)
    common = {"temperature": 0, "token_details": True, "cache_salt": salt}
    lossy = {"draft": "suffix", "spec_length": 1, "verifier": "lenient", "lenience": 0.1}

    def ask(key: str, **body: Any) -> list[dict[str, Any]]:
        told = server.post(COMPLETIONS, common | body, headers={"X-Api-Key": key})
        details: list[dict[str, Any]] = told["choices"][0]["token_details"]
        return details

    with saying(llm, SECRET, after=200):
        answer = ask(victim, prompt=[9] * 200, max_tokens=len(tokens), speculation={"draft": "suffix"})
        assert [token["id"] for token in answer] == tokens
        read = tokens[:2]
        while len(read) < len(tokens):
            first = ask(attacker, prompt=read, max_tokens=2, speculation=lossy)[0]
            if first["origin"] != "accepted":
                break
            read.append(first["id"])
    return server.service.tokenizer.decode(read)


@apart
def test_accepted_drafts_tell_nothing_of_another_key_s_answer(server: Live) -> None:
    assert len(recovered(server, KEYS[-1], KEYS[-2], "room")) <= len("the ")


@sharing
def test_accepted_drafts_tell_all_where_keys_share(server: Live) -> None:
    assert recovered(server, KEYS[0], KEYS[1], "room") == SECRET


ENDPOINTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "one two three four five six"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "one two three four five six"}]},
    "/completion": {"prompt": "one two three four five six"},
}


@apart
@pytest.mark.parametrize("path", ENDPOINTS)
def test_prompts_are_cached_for_their_key_and_salt_on_every_endpoint(server: Live, path: str) -> None:
    def cached(key: str, **options: Any) -> int:
        body = ENDPOINTS[path] | {"max_tokens" if path.startswith("/v1") else "n_predict": 2} | options
        told = server.post(path, body, headers={"Authorization": f"Bearer {key}"})
        return int(told["timings"]["cache_n"])

    mine, other = next(keys), next(keys)
    assert cached(mine) == 0
    known = cached(mine)
    assert known > 3
    assert cached(other) == cached(mine, cache_salt="apart") == 0
    assert cached(mine, cache_salt="apart") == known
    assert cached(other, cache_salt="apart") == 0
    if path == "/completion":
        assert cached(mine, cache_prompt=False) == cached(mine, cache_prompt=False) == 0
