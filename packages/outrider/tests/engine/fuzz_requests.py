"""Random requests in random company: is every output that of plain decoding, alone?

    python -m tests.engine.fuzz_requests --count 5000 --dtype q4_1 --dtype q8_0 --dtype bfloat16

Small random models, in every precision of the native library and with every type of cache, serve requests with random
options, draft sources, lengths and trees, several at once. Each output is compared with plain decoding of the same
request by itself. Prints one JSON line; the exit code is 1 if a token differs. Reproducible by ``--seed`` and
``--dtype``.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from outrider.cache import KVCache
from outrider.config import DTypeName, SamplingParams
from outrider.drafters.api import Drafter
from outrider.drafters.text.suffix import SuffixDrafter
from outrider.models.base import LoadedModel
from outrider.models.factory import make_model
from tests import small_models
from tests.small_engines import engine, request, run
from tests.torch_drafters.heads import drafter, random_head

PRECISIONS: tuple[DTypeName, ...] = ("q4_1", "q4_0", "q8_0", "bfloat16", "float32")
SOURCES = (
    "ngram",
    "lookup",
    "model",
    "models",
    "hierarchical",
    "layer_skip",
    "lookahead",
    "ngram,model",
    "lookup/ngram",
    "eagle",
    "dflash",
    "suffix,dflash",
)
TREES = (None, None, "2,2,1", "3,1", "dynamic")
CONFIG = small_models.config(tie_embeddings=False, max_seq_len=256)
WEIGHTS = small_models.tensors(CONFIG)
WEIGHTS["lm_head.weight"] *= 3  # as sure of itself as a trained model is
BATCH = 8


@cache
def target(dtype: DTypeName, kv_cache: Any) -> LoadedModel:
    return make_model(CONFIG, WEIGHTS, dtype=dtype, kv_cache_dtype=kv_cache)


@cache
def draft() -> LoadedModel:
    other = small_models.tensors(CONFIG, seed=9)
    return make_model(CONFIG, {name: 0.92 * w + 0.08 * other[name] for name, w in WEIGHTS.items()})


def heads_of(model: LoadedModel) -> Callable[[KVCache], dict[str, Drafter]]:
    """Sources with random heads, for an engine on ``model``."""
    kinds = {"eagle": "eagle3", "dflash": "dflash"}
    return lambda cache: (
        {name: drafter(random_head(kind), model, cache, slots=BATCH) for name, kind in kinds.items()}
        | {"suffix": SuffixDrafter(CONFIG.vocab_size)}
    )


def options(rng: random.Random) -> dict[str, Any]:
    chosen: dict[str, Any] = {"max_tokens": rng.randint(1, 40)}
    if rng.random() < 0.7:
        chosen |= {"temperature": rng.choice((0.3, 0.7, 1.0, 1.6)), "seed": rng.getrandbits(40)}
    some = {
        "top_k": rng.choice((1, 5, 30)),
        "top_p": rng.choice((0.3, 0.9, 0.99)),
        "min_p": rng.choice((0.01, 0.2)),
        "repetition_penalty": rng.choice((0.8, 1.3)),
        "presence_penalty": rng.choice((-0.5, 0.7)),
        "frequency_penalty": rng.choice((-0.4, 0.6)),
        "logit_bias": {rng.randrange(64): rng.choice((-3.0, 4.0))},
        "min_tokens": rng.randint(0, chosen["max_tokens"]),
        "banned_token_ids": [rng.randrange(64)],
    }
    return chosen | {name: value for name, value in some.items() if rng.random() < 0.25}


def differences(
    rng: random.Random, count: int, dtypes: Sequence[DTypeName], done: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Runs ``count`` requests, a batch at a time, and yields those whose output differs; ``done`` counts by dtype."""
    for first in range(0, count, BATCH):
        dtype = rng.choice(dtypes)
        model = target(dtype, rng.choice(("auto", "int8", "bfloat16")))
        limits: dict[str, Any] = {
            "slots": BATCH,
            "kind": rng.choice(("contiguous", "paged")),
            "block_size": rng.choice((4, 16)),
        }
        served = engine(
            model, draft=draft(), eos=[11], max_batched_tokens=rng.choice((16, 64, 512)), more=heads_of(model), **limits
        )
        asked = []
        for i in range(first, min(first + BATCH, count)):
            prompt = small_models.ids(rng.randint(1, 30), seed=rng.randrange(9)) * rng.randint(1, 3)
            source: dict[str, Any] = {"draft": rng.choice(SOURCES), "spec_length": rng.choice((1, 3, 8, "auto"))}
            tree = rng.choice(TREES) if source["draft"] in ("model", "layer_skip", "eagle", "dflash") else None
            given = options(rng)
            made = request(prompt, SamplingParams(**given), id=str(i), stop_ids=[11], tree=tree, **source)
            asked.append((made, prompt, given, source | {"tree": tree}))
        run(served, *(made for made, *_ in asked))
        for made, prompt, given, source in asked:
            alone = request(prompt, SamplingParams(**given), stop_ids=[11])
            run(engine(model, eos=[11]), alone)
            if list(made.output) != list(alone.output) or made.error is not None:
                found, plain = list(made.output), list(alone.output)
                yield {
                    "dtype": dtype,
                    "options": given,
                    "source": source,
                    "prompt": prompt,
                    "found": found,
                    "plain": plain,
                }
        done[dtype] += len(asked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", action="append", choices=PRECISIONS, help="may be repeated; default: all")
    args = parser.parse_args()
    done: Counter[str] = Counter()
    found = list(differences(random.Random(args.seed), args.count, args.dtype or PRECISIONS, done))
    for each in found[:5]:
        print(json.dumps(each), file=sys.stderr)
    print(json.dumps({"requests": done.total(), "by_dtype": done, "seed": args.seed, "different": len(found)}))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
