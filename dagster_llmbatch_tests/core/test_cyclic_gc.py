"""The collector is paused within, and as it was afterwards."""

import gc

import pytest

from dagster_llmbatch.core.cyclic_gc import cyclic_gc_paused


def test_the_collector_is_on_again_after_an_error() -> None:
    """A failure in the work does not leave the process without a collector."""
    with pytest.raises(ValueError, match="x"), cyclic_gc_paused():
        assert not gc.isenabled()
        raise ValueError("x")
    assert gc.isenabled()


def test_a_process_without_the_collector_stays_so() -> None:
    """Who switched it off for good keeps it off, and a pause within a pause ends with the outer one."""
    with cyclic_gc_paused():
        with cyclic_gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
