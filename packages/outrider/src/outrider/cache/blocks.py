"""Bookkeeping of fixed-size cache blocks: users, contents and free list. No keys or values are here."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from outrider.errors import CapacityError

Digest = bytes


DIGEST_BLOCK = 16  # tokens in each block that ``KVCache.held_digests`` names

_LARGE = (1 << 32) - 1
_MARK = _LARGE.to_bytes(4, "little")


def chain_digests(tokens: Sequence[int], block_size: int, salt: str = "") -> list[Digest]:
    """One digest for each full block, over all tokens up to the block's end: equal digests mean equal prefixes.

    ``salt`` separates tenants: blocks of different salts never match, and no tenant learns of another's blocks.
    """
    digests: list[Digest] = []
    previous = hashlib.blake2b(salt.encode(), digest_size=16).digest()
    for end in range(block_size, len(tokens) + 1, block_size):
        block = b"".join(map(key_bytes, tokens[end - block_size : end]))
        previous = hashlib.blake2b(previous + block, digest_size=16).digest()
        digests.append(previous)
    return digests


def prefix_digests(tokens: Sequence[int], lengths: Sequence[int], salt: str = "") -> list[Digest]:
    """A digest of the first n tokens for each n of ``lengths`` (ascending); ``salt`` as in ``chain_digests``."""
    digests: list[Digest] = []
    seen, at = hashlib.blake2b(hashlib.blake2b(salt.encode(), digest_size=16).digest(), digest_size=16), 0
    for length in lengths:
        seen.update(b"".join(map(key_bytes, tokens[at:length])))
        digests.append(seen.digest())
        at = length
    return digests


def key_bytes(key: int) -> bytes:
    """Bytes of a token's id or of an image position's larger key; no two sequences of keys have the same bytes."""
    return key.to_bytes(4, "little") if key < _LARGE else _MARK + key.to_bytes(40, "little")


class BlockPool:
    """Blocks that are free, used (by one or more sequences), or cached (unused, but found by their content).

    ::

        take()                free -> used            cached (least recently used) -> used, its contents forgotten
        release(block)        used -> cached if published, else free        (when the last user lets go)
        find(digest)          used or cached -> used, one more user
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._users = [0] * total
        self._cached: OrderedDict[int, None] = OrderedDict()  # unused published blocks, least recently used first
        self._by_digest: dict[Digest, int] = {}
        self._digest_of: dict[int, Digest] = {}

    @property
    def available(self) -> int:
        """Blocks that can be taken now."""
        return len(self._free) + len(self._cached)

    def take(self) -> int:
        """A block with one user and arbitrary contents. Raises CapacityError if all blocks are used."""
        if self._free:
            block = self._free.pop()
        elif self._cached:
            block, _ = self._cached.popitem(last=False)
            del self._by_digest[self._digest_of.pop(block)]
        else:
            raise CapacityError(f"all {self.total} cache blocks are in use")
        self._users[block] = 1
        return block

    def release(self, block: int) -> None:
        """Remove one user of ``block``."""
        self._users[block] -= 1
        if self._users[block] == 0:
            if block in self._digest_of:
                self._cached[block] = None
            else:
                self._free.append(block)

    def find(self, digest: Digest) -> int | None:
        """The block with this content, with one more user; None if no block has it."""
        block = self._by_digest.get(digest)
        if block is not None:
            self._cached.pop(block, None)
            self._users[block] += 1
        return block

    def digests(self) -> list[Digest]:
        """The digests of all blocks that ``find`` can find."""
        return list(self._by_digest)

    def publish(self, block: int, digest: Digest) -> None:
        """Declare the content of a full block. ``find`` finds the first of blocks with equal content."""
        if block not in self._digest_of and digest not in self._by_digest:
            self._by_digest[digest] = block
            self._digest_of[block] = digest

    def forget(self) -> None:
        """Free the cached blocks. No block is used."""
        self._free += reversed(self._cached)
        self._cached.clear()
        self._by_digest.clear()
        self._digest_of.clear()

    def is_exclusive(self, block: int) -> bool:
        """Whether ``block`` has one user, and is not published: its user may write into it."""
        return self._users[block] == 1 and block not in self._digest_of

    def check(self) -> None:
        """Raise AssertionError unless free + used + cached == total and the indexes agree."""
        used = sum(users > 0 for users in self._users)
        free, cached = len(self._free), len(self._cached)
        if free + used + cached != self.total:
            raise AssertionError(
                f"cache blocks are not conserved: {free} free + {used} used + {cached} cached != {self.total} in total"
            )
        if any(self._users[block] for block in (*self._free, *self._cached)):
            raise AssertionError("a block is both in use and on offer")
        if {self._by_digest[d] for d in self._digest_of.values()} != set(self._digest_of):
            raise AssertionError("published blocks and their digests disagree")

    def check_users(self, held: Mapping[int, int]) -> None:
        """Raise AssertionError unless each block has as many users as tables name it (``held``)."""
        for block, users in enumerate(self._users):
            if users != held.get(block, 0):
                raise AssertionError(f"block {block} has {users} users, but {held.get(block, 0)} tables name it")
