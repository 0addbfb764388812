"""What several files share: draws by the native library and by NumPy alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outrider.verify import native
from outrider.verify.native import NativeSampler


@pytest.fixture(scope="module", params=["library", "numpy"])
def each_sampler(request: pytest.FixtureRequest) -> Iterator[None]:
    """The tests of a module run twice: with the native library, and as if there were none."""
    if request.param == "library" and native.sampler() is None:
        pytest.skip("no native library")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            patch.setattr(native, "sampler", lambda: None)
        yield


@pytest.fixture(scope="module")
def sampler() -> NativeSampler:
    """The native library's sampling."""
    found = native.sampler()
    if found is None:
        pytest.skip("no native library")
    return found
