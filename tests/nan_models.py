"""A model that fills rows of its cache with NaN, and what an engine must make of that, by implementation."""

from __future__ import annotations

from outrider.config import SamplingParams
from outrider.config.engine import DTypeName, Implementation
from outrider.errors import NumericalError
from outrider.models.base import LoadedModel
from outrider.models.factory import make_model
from outrider.verify.draft import Draft
from tests import small_models
from tests.small_engines import Scripted, engine, generate, request, run


def sick_llama(implementation: Implementation) -> LoadedModel:
    """Reading token 63 fills rows of the cache with NaN; saying it is as likely as saying another.

    The residual stream has a place that this token alone uses, and numbers overflow there.
    """
    c = small_models.config(tie_embeddings=False, max_seq_len=1100)
    tensors = small_models.tensors(c)
    tensors["model.embed_tokens.weight"][:63, 0] = 0
    tensors["model.embed_tokens.weight"][63, 0] = 10
    for name, weight in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight[0] = 0
        if name.endswith("input_layernorm.weight"):
            weight[0] = 1e25
    dtype: DTypeName = "bfloat16" if implementation == "native" else "float32"
    return make_model(c, tensors, dtype=dtype, implementation=implementation)


def check_nan_of_a_refused_draft(implementation: Implementation, prompt: int, at: int) -> None:
    """Masked rows of NaN may spread all the same, in this run, in the next, and to the next request of the slot."""
    tokens = [t % 63 for t in small_models.ids(prompt)]
    params = SamplingParams(max_tokens=8, banned_token_ids=[63])
    expected = generate(engine(sick_llama(implementation)), tokens, params)

    poison = Scripted(lambda view, budget: Draft.chain(([0] * at + [63])[:budget], source="bad"))
    served = engine(sick_llama(implementation), more={"poison": poison})
    r = request(tokens, params, draft="poison")
    run(served, r)
    assert r.error is None
    assert list(r.output) == expected
    assert generate(served, tokens, params) == expected
    bad = request([*tokens, 63], params)
    run(served, bad)
    assert isinstance(bad.error, NumericalError)
    after = request(tokens, params)
    run(served, after)
    assert list(after.output) == expected
    assert not after.retried_without_drafts  # the failed request left a clean slot
