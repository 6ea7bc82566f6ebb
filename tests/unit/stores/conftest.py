"""Where PostgreSQL runs, for the tests of what is over it."""

from __future__ import annotations

import pytest

from tests.support import archives


@pytest.fixture
def server(request: pytest.FixtureRequest) -> str:
    return archives.postgres_server_url(request)
