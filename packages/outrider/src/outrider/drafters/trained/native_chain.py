"""A head's whole chain of draft tokens in one call of the native library (``src/draft.c``).

For a small target's head, the Python between two levels takes longer than a level in the library. So for a single
request's chain, the library runs all levels, and asks Python after each whether to continue.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.cache import KVCache
from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.trees.child_sampler import GumbelArgmax
from outrider.errors import NumericalError
from outrider.models.batch import Span
from outrider.models.native_llama import NativeLlamaModel
from outrider.models.native_passes import CacheView, address, check_status, int64s
from outrider.native.library import native_library
from outrider.native.model_structs import ChainStruct, FeatureHeadStruct, ModelStruct, TokenFound
from outrider.native.weights import NativeWeight
from outrider.verify.arrays import Floats
from outrider.verify.native import KEY_BYTES, sampling_struct

_NOT_FINITE = 4  # OUTRIDER_NOT_FINITE
_Keys = ctypes.c_uint8 * KEY_BYTES


def takes_chains(config: HeadConfig) -> bool:
    """Whether the library has every operation of a head: true for EAGLE-3 and 3.1 heads as trained here."""
    return (
        bool(config.feature_layers)
        and config.fuses_layers
        and not config.norm_before_fc
        and not config.norm_before_residual
    )


class _Levels:
    """Hears of each level's token from the library, and prepares the next level."""

    def __init__(
        self,
        target: NativeLlamaModel,
        race: GumbelArgmax,
        levels: int,
        embeddings: Floats | None,
        found: Callable[[int, float], bool],
    ) -> None:
        """``embeddings``: float [n, d], whose first row the library reads for a level; None: it looks tokens up."""
        self._target, self._keys_at, self._levels = target, race.keys, levels
        self._embeddings, self._found = embeddings, found
        self._depth = 0
        self._keys = None if race.keys is None else _Keys.from_buffer_copy(race.keys(0))
        self.error: BaseException | None = None

    @property
    def keys_address(self) -> int | None:
        """The address of the keys of the coming level's noise; None without noise."""
        return None if self._keys is None else ctypes.addressof(self._keys)

    def tell(self, token: int, score: float) -> int:
        """Whether the library goes on to the next level."""
        try:
            if not self._found(token, score):
                return 0
            self._depth += 1
            if self._depth < self._levels:
                if self._embeddings is not None:
                    self._embeddings[0] = self._target.embed(np.array([token]))[0]
                if self._keys_at is not None and self._keys is not None:
                    ctypes.memmove(self._keys, self._keys_at(self._depth), KEY_BYTES)
        except BaseException as error:  # noqa: BLE001 (raised after the call: C code cannot propagate it)
            self.error = error
            return 0
        return 1


class NativeChain:
    """Drafts chains with the packed weights of a ``NativeEagle``."""

    def __init__(
        self,
        target: NativeLlamaModel,
        cache: KVCache,
        model: ModelStruct,
        fc: NativeWeight,
        fc_norms: Sequence[int | None],
        output_norm: int | None,
        ids: NDArray[np.int64] | None,
        *,
        embedding_norm: int | None = None,
        read: Callable[[Floats], Floats] | None = None,
    ) -> None:
        """
        Args:
            cache: the layers' own.
            fc_norms, output_norm, embedding_norm: addresses of weights (``outrider_feature_head``).
            ids: int64, the tokens that the head scores; None: all.
            read: turns the target's features into those that the library reads; None: they are the same.
        """
        self._cache, self._view = cache, CacheView(cache)
        self._target, self._embedding = target, target.packed_embedding
        self._hidden = target.config.hidden_size
        self.columns = len(ids) if ids is not None else target.head.outputs
        """The number of logits per row."""
        self._more: NativeWeight | None = None
        norms = (ctypes.c_void_p * len(fc_norms))(*fc_norms) if fc_norms else None
        self._held = model, fc, norms, ids
        self._read = read
        scale = target.config.embedding_scale
        self._head = FeatureHeadStruct(
            layers=ctypes.addressof(model),
            fc=ctypes.addressof(fc.struct),
            fc_norm=None if norms is None else ctypes.addressof(norms),
            output_norm=output_norm,
            embedding=None if self._embedding is None else ctypes.addressof(self._embedding.struct),
            ids=None if ids is None else ids.ctypes.data,
            embedding_norm=embedding_norm,
            parts=1 if embedding_norm is not None else fc.inputs // self._hidden,
            embedding_scale=0.0 if scale == 1.0 else scale,
        )
        self._library = native_library()

    def score(self, ids: NDArray[np.int64], more: NativeWeight | None) -> None:
        """Score the tokens ``ids`` from now on: those of the LM head, and behind them those of ``more``."""
        self._ids, self._more, self.columns = np.ascontiguousarray(ids), more, len(ids)
        self._head.ids = self._ids.ctypes.data
        self._head.more = None if more is None else ctypes.addressof(more.struct)

    def run(
        self,
        features: Floats,
        tokens: Sequence[int],
        positions: Sequence[int],
        span: Span,
        race: GumbelArgmax,
        levels: int,
        found: Callable[[int, float], bool],
    ) -> tuple[Floats, Floats]:
        """Run the layers over the waiting features, then over a chain of up to ``levels`` draft tokens.

        Args:
            features: float [n, layers * d], the target's.
            tokens: the token after each row's feature.
            positions: the position of each row's feature.
            span: these rows in the cache, which has room for ``levels - 1`` more rows.
            race: how a level's token is chosen.
            found: called with each token and its log-probability; returning false ends the chain.

        Returns:
            The output [1, d] and the logits [1, columns] of the last feature's row.
        """
        features = np.ascontiguousarray(features if self._read is None else self._read(features), np.float32)
        embeddings = None if self._embedding is not None else self._target.embed(np.array(tokens, np.int64))
        output, logits = np.empty((1, self._hidden), np.float32), np.empty((1, self.columns), np.float32)
        ids, at = int64s(tokens), int64s(positions)
        table = array("i", self._cache.table(span.slot, span.start + span.count + levels - 1))
        each = _Levels(self._target, race, levels, embeddings, found)
        told, options = TokenFound(each.tell), sampling_struct(race.params)
        chain = ChainStruct(
            rows=span.count,
            levels=levels,
            start=span.start,
            entries=len(table),
            table=address(table),
            features=features.ctypes.data,
            tokens=address(ids),
            positions=address(at),
            sampling=ctypes.addressof(options),
            keys=each.keys_address,
            found=told,
            embeddings=None if embeddings is None else embeddings.ctypes.data,
            output=output.ctypes.data,
            logits=logits.ctypes.data,
        )
        head, cache = ctypes.byref(self._head), self._view.address
        context = self._target.context.address
        status = self._library.outrider_draft_chain(context, head, cache, ctypes.byref(chain))
        if each.error is not None:
            raise each.error
        if status == _NOT_FINITE:
            raise NumericalError("a draft head's logits are not finite")
        check_status(status)
        return output, logits
