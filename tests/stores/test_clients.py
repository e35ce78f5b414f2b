"""The client libraries of stores: loaded by whoever needs them, and named where they are missing."""

from __future__ import annotations

import pytest

from tests.support.processes import run_python


@pytest.mark.parametrize(
    ("module", "client"), [("pyresil.stores.redis", "redis"), ("pyresil.stores.postgres", "psycopg")]
)
def test_importing_a_store_loads_no_client(module, client):
    done = run_python(f"import sys, {module}; print({client!r} in sys.modules)")
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("url", "client", "extra"),
    [
        ("redis://u:secret@localhost:1/0", "redis", "redis"),
        ("postgresql://u:secret@localhost:1/x", "psycopg", "postgres"),
    ],
)
def test_a_missing_client_library_names_the_extra(url, client, extra):
    code = f"""
        import sys
        sys.modules[{client!r}] = None
        from pyresil.stores.backend import connect
        try:
            connect({url!r}).locks
        except ImportError as error:
            print(error)
    """
    assert run_python(code).stdout.strip() == f'{client} is not installed: pip install "pyresil[{extra}]"'
