"""A device that is none: its tensors are computed on the CPU, but do not mix with the CPU's, as a GPU's do not.

It goes by the name of ``meta``, as autograd knows that one on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

NAME = "meta"
_aten = torch.ops.aten
_MAY_MIX = {_aten.copy_.default, _aten._to_copy.default, _aten.index.Tensor, _aten.index_put_.default}
"""Copies, and indices on the CPU, which torch takes for tensors of a GPU."""


class There(torch.Tensor):
    """A tensor of the device; ``here`` holds its numbers."""

    here: torch.Tensor

    @staticmethod
    def __new__(cls, here: torch.Tensor) -> There:
        made: There = torch.Tensor._make_wrapper_subclass(
            cls, here.shape, strides=here.stride(), storage_offset=here.storage_offset(), dtype=here.dtype,
            device=torch.device(NAME), requires_grad=False,
        )  # fmt: skip
        made.here = here
        return made

    def tolist(self) -> Any:
        return self.here.tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return run(func, args, kwargs or {})


class Elsewhere(TorchDispatchMode):
    """While it is entered, tensors made on ``NAME`` are There."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """``func`` on the CPU; results are There if an input is, or if they are asked to be. Mixed inputs are an error."""
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    there = [x for x in tensors if isinstance(x, There)]
    if there and func not in _MAY_MIX and any(not isinstance(x, There) and x.dim() for x in tensors):
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found {NAME} and cpu")
    wanted = kwargs.get("device")
    to_there = bool(there) if wanted is None else torch.device(wanted).type == NAME
    if wanted is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    if func is _aten.copy_.default:
        to_there = isinstance(args[0], There)
    given = tree_map(lambda x: x.here if isinstance(x, There) else x, (args, kwargs))
    found = func(*given[0], **given[1])
    if func._schema.is_mutable and isinstance(found, torch.Tensor):  # type: ignore[attr-defined]
        return args[0] if "out" not in kwargs else kwargs["out"]
    return tree_map(lambda x: There(x) if to_there and isinstance(x, torch.Tensor) else x, found)
