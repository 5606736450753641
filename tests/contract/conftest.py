from collections.abc import Iterator

import pytest

from wardround.core.threads import torch_threads


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Waking a second thread takes longer than any of these steps."""
    with torch_threads(1):
        yield
