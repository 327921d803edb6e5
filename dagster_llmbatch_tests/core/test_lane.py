"""Which lane a partition takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_llmbatch.core.lane import BATCH_ABOVE, LanePolicy, choose_lane
from dagster_llmbatch.errors import NotBatchCapableError
from dagster_llmbatch.providers.content import PartKind
from dagster_llmbatch.providers.contract import Mode

TEXT, IMAGE, PDF = PartKind.TEXT, PartKind.IMAGE_URL, PartKind.DOCUMENT_DATA
NO_KEY = "openai is not configured"
TABLE = [
    # policy, rows, why no provider batches, parts, parts a batch takes, lane, word of the reason
    ("auto", 19, None, [TEXT], [TEXT], "realtime", "19 rows"),
    ("auto", 20, None, [TEXT], [TEXT], "batch", "20 rows"),
    ("auto", 0, None, [], [TEXT], "realtime", "0 rows"),
    ("auto", 20, NO_KEY, [TEXT], [TEXT], "realtime", NO_KEY),
    ("auto", 19, NO_KEY, [IMAGE], [TEXT], "realtime", "19 rows"),
    ("auto", 20, None, [TEXT, IMAGE], [TEXT], "realtime", "image_url"),
    ("auto", 20, None, [TEXT, IMAGE], [TEXT, IMAGE], "batch", "20 rows"),
    ("auto", 20, None, [IMAGE, PDF], [TEXT, IMAGE], "realtime", "document_data"),
    ("batch", 1, None, [TEXT], [TEXT], "batch", "policy"),
    ("batch", 1, None, [IMAGE], [TEXT, IMAGE], "batch", "policy"),
    ("batch", 1, NO_KEY, [TEXT], [TEXT], None, NO_KEY),
    ("batch", 1000, None, [TEXT, IMAGE], [TEXT], None, "image_url"),
    ("realtime", 1000, None, [TEXT], [TEXT], "realtime", "policy"),
    ("realtime", 1000, NO_KEY, [IMAGE], [TEXT], "realtime", "policy"),
]


@pytest.mark.parametrize(("policy", "rows", "why", "parts", "batch_parts", "mode", "reason"), TABLE)
def test_lanes(
    policy: LanePolicy,
    rows: int,
    why: "str | None",
    parts: "list[PartKind]",
    batch_parts: "list[PartKind]",
    mode: "Mode | None",
    reason: str,
) -> None:
    """Every row of the decision table; no mode means that the policy cannot be kept, which is said before any spend."""
    if mode is None:
        with pytest.raises(NotBatchCapableError, match=rf"{reason}.*Nothing was spent"):
            choose_lane(policy, rows, why_not_batch=why, parts=parts, batch_parts=batch_parts)
        return
    lane = choose_lane(policy, rows, why_not_batch=why, parts=parts, batch_parts=batch_parts)
    assert lane.mode == mode
    assert reason in lane.reason


def test_twenty_rows_are_the_default() -> None:
    """At or above batch_above, which is 20 unless said otherwise."""
    assert BATCH_ABOVE == 20
    assert choose_lane("auto", 4, batch_above=5).mode == "realtime"
    assert choose_lane("auto", 5, batch_above=5).mode == "batch"
    assert choose_lane("auto", 0, batch_above=0).mode == "batch"


@given(
    st.sampled_from(["auto", "batch", "realtime"]),
    st.integers(0, 100),
    st.integers(0, 100),
    st.none() | st.just(NO_KEY),
    st.sets(st.sampled_from(list(PartKind))),
    st.sets(st.sampled_from(list(PartKind))),
)
def test_a_batch_is_never_chosen_where_there_can_be_none(
    policy: LanePolicy,
    rows: int,
    batch_above: int,
    why: "str | None",
    parts: "set[PartKind]",
    batch_parts: "set[PartKind]",
) -> None:
    """And the policy's word is kept or refused, never bent."""
    possible = why is None and parts <= batch_parts
    try:
        lane = choose_lane(
            policy, rows, batch_above=batch_above, why_not_batch=why, parts=parts, batch_parts=batch_parts
        )
    except NotBatchCapableError:
        assert policy == "batch"
        assert not possible
        return
    assert lane.reason
    assert possible or lane.mode == "realtime"
    assert policy in ("auto", lane.mode)
    assert policy != "auto" or lane.mode == ("batch" if possible and rows >= batch_above else "realtime")
