"""Forward passes in fixed shapes, captured as CUDA graphs: a decoding step is one launch instead of hundreds.

A bucket's first forward pass is computed kernel by kernel, its second is captured, and later ones are replayed. If
a capture fails, one line is logged and the model continues without graphs.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor

from outrider.cache.pool import Pool
from outrider.cache.protocol import KVCache
from outrider.models.batch import ForwardBatch, ForwardOutput
from outrider_torch.cuda_graphs.buckets import MAX_COPIED, Bucket, Grid, bucket_for, lay_out

logger = logging.getLogger(__name__)

MAX_GRAPHS = 32  # of one cache; the least recently used is dropped first
_SHARE_COPIED = 64  # the keys and values copied for a layer may take 1 / _SHARE_COPIED of the device's memory

Compute = Callable[[Grid, Bucket, Pool], ForwardOutput]
"""A forward pass in a fixed shape: its kernels read the grid; Python code reads no value of it."""


class Graph(Protocol):
    def replay(self) -> None:
        """Repeat the captured kernels on the same memory with its current contents."""
        ...


class Capture(Protocol):
    def __call__(self, run: Callable[[], ForwardOutput]) -> tuple[Graph, ForwardOutput]:
        """Record ``run``; replays write their results into the output returned here."""
        ...


class CudaCapture:
    """Captures into one memory pool for all graphs: they run one at a time, and results are copied."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()  # a pool is freed with its last graph

    def __call__(self, run: Callable[[], ForwardOutput]) -> tuple[Graph, ForwardOutput]:
        # After a failed capture, torch does not restore the earlier stream: the second context does.
        with torch.cuda.device(self._stream.device), torch.cuda.stream(torch.cuda.current_stream(self._stream.device)):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                run()  # a library's first call on a stream initialises it, which cannot be captured
            torch.cuda.current_stream().wait_stream(self._stream)
            graph, pool = torch.cuda.CUDAGraph(), next((other.pool() for other in self._graphs), None)
            # Other threads, perhaps with their own models, may allocate meanwhile: hence "thread_local".
            with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
                output = run()
        self._graphs.add(graph)
        return graph, output


@dataclass
class _Shape:
    """The buffers and graph of a bucket."""

    buffer: Tensor  # int64 [bucket.size] on the device, read by replays
    grid: Grid
    graph: Graph | None = None
    output: ForwardOutput | None = None  # the tensors that replays write


class CudaGraphRunner:
    """Runs a model's forward passes in fixed shapes, with separate graphs for each cache."""

    def __init__(
        self, compute: Compute, device: torch.device, capture: Capture | None = None, limit: int = MAX_GRAPHS
    ) -> None:
        """``capture``: None computes every forward pass kernel by kernel. ``limit``: shapes kept per cache."""
        self._compute, self._device, self._capture, self._limit = compute, device, capture, limit
        self._most_copied = MAX_COPIED
        if device.type == "cuda":
            memory = torch.cuda.get_device_properties(device).total_memory
            self._most_copied = min(MAX_COPIED, memory // _SHARE_COPIED)
        # Graphs are bound to the memory of one cache and freed with it: so this object must not hold a reference to it.
        self._shapes: WeakKeyDictionary[KVCache, OrderedDict[Bucket, _Shape]] = WeakKeyDictionary()
        self.failed = False

    def captured(self, cache: KVCache) -> list[Bucket]:
        """The shapes captured for ``cache``, least recently used first."""
        return [bucket for bucket, shape in self._shapes.get(cache, {}).items() if shape.graph is not None]

    def run(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput | None:
        """The results of a forward pass; None if no fixed shape fits."""
        bucket = None if self.failed else bucket_for(batch, cache, self._most_copied)
        if bucket is None:
            return None
        shapes = self._shapes.setdefault(cache, OrderedDict())
        first = bucket not in shapes
        if first:
            buffer = torch.empty(bucket.size, dtype=torch.int64, device=self._device)
            shapes[bucket] = _Shape(buffer, Grid.over(buffer, bucket))
        shape = shapes[bucket]
        shapes.move_to_end(bucket)
        shape.buffer.copy_(lay_out(batch, bucket, cache))
        rows = len(batch.token_ids) if batch.logit_rows is None else len(batch.logit_rows)
        if first or self._capture is None:
            output = self._compute(shape.grid, bucket, cache.pool)
        else:
            if shape.graph is None and not self._captured(shape, bucket, cache.pool, self._capture):
                return None
            assert shape.graph is not None
            assert shape.output is not None
            shape.graph.replay()
            output = shape.output
        if len(shapes) > self._limit:
            shapes.popitem(last=False)
        return _own(output, rows, len(batch.token_ids))

    def _captured(self, shape: _Shape, bucket: Bucket, pool: Pool, capture: Capture) -> bool:
        """Capture the shape's graph; after a failure, captures are off."""
        try:
            shape.graph, shape.output = capture(lambda: self._compute(shape.grid, bucket, pool))
        except RuntimeError as error:  # torch's errors, including out of memory
            reason = str(error.__context__ or error).partition("\n")[0]  # a failed run also fails its capture
            logger.warning(
                "a forward pass could not be captured as a CUDA graph, so there will be none: %s (%s)", reason, bucket
            )
            self.failed = True
            self._shapes.clear()
        return not self.failed


def _own(output: ForwardOutput, rows: int, tokens: int) -> ForwardOutput:
    """Copies of the requested rows, as the next replay overwrites them."""
    features = None if output.features is None else output.features[:tokens].clone()
    return replace(output, logits=output.logits[:rows].clone(), hidden=output.hidden[:rows].clone(), features=features)
