"""States as bytes."""

from __future__ import annotations

import pytest

from adcs._serialization import unpack


def test_other_bytes_are_refused():
    with pytest.raises(ValueError, match="not a packed"):
        unpack(b"garbage")
