"""Requests into chunks: every request in exactly one, and no chunk over a limit."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_llmbatch.core.chunks import Chunk, ChunkSize, Oversized, split
from dagster_llmbatch.core.recipe import Policy
from dagster_llmbatch.ledger.records import BatchPhase, BatchRecord
from dagster_llmbatch.providers.contract import Limits, RequestTemplate
from dagster_llmbatch.providers.limits import LIMITS
from dagster_llmbatch.providers.openai import RESPONSES, OpenAIEncoder
from dagster_llmbatch.simulator.server import SimulatorServer
from dagster_llmbatch_tests.core.workplace import Shop, table

NOWHERE = Path(os.devnull)
REAL = LIMITS["openai"]


def limits(requests: int, size: int) -> Limits:
    """Limits with only count and bytes set."""
    return Limits(requests, size, window=1.0, cancel_settle=0.0, retention=1.0, as_of="2026-11-30", source="test")


def sized(ours: "int | None", allowed: Limits, *batches: BatchRecord) -> ChunkSize:
    """The chunk size under a count of the user's, after some batches."""
    return ChunkSize.after(batches, Policy(max_requests_per_batch=ours), allowed)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 30)), max_size=40),
    most=st.integers(1, 7),
    size=st.integers(1, 60),
    ours=st.none() | st.integers(1, 9),
)
def test_every_request_stands_in_one_chunk_within_the_limits(
    rows: "list[tuple[str, int]]", most: int, size: int, ours: "int | None", tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each row is in one chunk of its group or oversized; count and bytes hold; files hold the lines in row order."""
    folder = tmp_path_factory.mktemp("chunks")
    lines = {row: bytes([97 + row % 26]) * (length - 1) + b"\n" for row, (_, length) in enumerate(rows)}
    requests = ((group, row, f"id-{row}", lines[row]) for row, (group, _) in enumerate(rows))
    found = list(
        split(
            requests, limits(most, size), size=sized(ours, limits(most, size)), path_for=lambda n: folder / f"{n}.jsonl"
        )
    )
    chunks = [chunk for chunk in found if isinstance(chunk, Chunk)]
    oversized = {one.row: one.bytes for one in found if isinstance(one, Oversized)}
    assert oversized == {row: len(line) for row, line in lines.items() if len(line) > size}
    sent = [row for chunk in chunks for row in chunk.rows]
    assert sorted([*sent, *oversized]) == list(range(len(rows)))
    assert len({chunk.path for chunk in chunks}) == len(chunks)
    for chunk in chunks:
        assert 0 < len(chunk.rows) <= min(most, ours or most)
        assert chunk.rows == sorted(chunk.rows)
        assert {rows[row][0] for row in chunk.rows} == {chunk.group}
        assert chunk.custom_ids == [f"id-{row}" for row in chunk.rows]
        content = chunk.path.read_bytes()
        assert content == b"".join(lines[row] for row in chunk.rows)
        assert len(content) == chunk.bytes <= size


def test_interleaved_groups_keep_one_chunk_each(tmp_path: Path) -> None:
    """Two models row by row make two chunks, not one a row."""
    requests = [("ab"[row % 2], row, str(row), b"x\n") for row in range(10)]
    found = list(split(requests, limits(50, 1000), size=ChunkSize(50), path_for=lambda n: tmp_path / str(n)))
    assert sorted((c.group, c.rows) for c in found if isinstance(c, Chunk)) == [
        ("a", [0, 2, 4, 6, 8]),
        ("b", [1, 3, 5, 7, 9]),
    ]


def test_our_count_never_raises_the_providers() -> None:
    """max_requests can only make chunks smaller."""
    requests = [("a", row, str(row), b"x\n") for row in range(5)]
    found = list(split(requests, limits(2, 1000), size=sized(100, limits(2, 1000)), path_for=lambda n: NOWHERE))
    assert [len(c.rows) for c in found if isinstance(c, Chunk)] == [2, 2, 1]


def test_no_requests_make_no_chunk(tmp_path: Path) -> None:
    """Nothing to send creates no batch and no file."""
    assert list(split([], limits(2, 10), size=ChunkSize(2), path_for=lambda n: tmp_path / str(n))) == []
    assert list(tmp_path.iterdir()) == []


def test_a_line_of_exactly_the_limit_is_sent() -> None:
    """The limit itself is allowed; a byte more is not."""
    requests = [("a", 0, "0", b"123456789\n"), ("a", 1, "1", b"1234567890\n")]
    first, second = split(requests, limits(9, 10), size=ChunkSize(9), path_for=lambda n: NOWHERE)
    assert first == Oversized(1, 11)
    assert isinstance(second, Chunk)
    assert second.rows == [0]


def test_wide_characters_count_in_bytes() -> None:
    """30 rows of 9 MB of 3-byte characters stay under 200 MB a chunk, with the schema in each line counted."""
    template = RequestTemplate("gpt-5-mini", schema={"type": "object", "description": "d" * 50_000})
    line = OpenAIEncoder(template, RESPONSES).line("r-1", "\u3042" * 3_000_000)
    assert len(line) > 9_050_000
    requests = (("a", row, str(row), line) for row in range(30))
    found = list(split(requests, REAL, size=sized(None, REAL), path_for=lambda n: NOWHERE))
    assert [len(c.rows) for c in found if isinstance(c, Chunk)] == [22, 8]
    assert all(c.bytes <= 200_000_000 for c in found)


def test_one_row_over_the_limit_fails_alone() -> None:
    """A row of 210 MB is named; its neighbours share one chunk."""
    requests = [("a", 0, "0", b"x\n"), ("a", 1, "1", bytes(210_000_000)), ("a", 2, "2", b"x\n")]
    found = list(split(requests, REAL, size=sized(None, REAL), path_for=lambda n: NOWHERE))
    assert found[0] == Oversized(1, 210_000_000)
    assert [c.rows for c in found if isinstance(c, Chunk)] == [[0, 2]]


def test_many_tiny_rows_split_by_count() -> None:
    """50,001 rows make a chunk of 50,000 and one of 1, where the user asks for as many as OpenAI takes."""
    requests = (("a", row, str(row), b"x\n") for row in range(50_001))
    found = split(requests, REAL, size=sized(50_000, REAL), path_for=lambda n: NOWHERE)
    assert [len(c.rows) for c in found if isinstance(c, Chunk)] == [50_000, 1]


def batch(
    at: float, requests: int, *, full: bool = False, wave: int = 1, collected: "float | None" = None
) -> BatchRecord:
    """A batch recorded at a time; a full one met a full queue."""
    return BatchRecord(
        id=f"b{at}", entry_id="e", wave=wave, chunk=0, external_key=f"k{at}", provider="openai",
        phase=BatchPhase.SUBMITTED if collected is None else BatchPhase.COLLECTED, request_count=requests,
        request_bytes=1, requests_segment="r", intent_at=at, collected_at=collected,
        status={"queue_full": True} if full else {},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("batches", "requests"),
    [
        ([], 100),
        ([batch(1, 80)], 100),
        ([batch(1, 80, full=True, collected=2)], 40),
        # the small rest of a wave that was refused as a whole says nothing of what fits
        ([batch(1, 80, full=True, collected=9), batch(2, 6, full=True, collected=9)], 40),
        ([batch(1, 80, full=True, collected=9), batch(10, 40, full=True, wave=2, collected=11)], 20),
        ([batch(1, 1, full=True, collected=2)], 1),
        # another one of ours is out: there will be room, for as much as before
        ([batch(1, 80), batch(2, 80, full=True, collected=3)], 80),
        ([batch(1, 80, collected=5), batch(2, 80, full=True, collected=6)], 80),
        ([batch(1, 80, collected=5), batch(6, 80, full=True, collected=7)], 40),
        # accepted since
        ([batch(1, 80, full=True, collected=2), batch(3, 40)], 100),
    ],
)
def test_a_full_queue_makes_chunks_smaller(batches: "list[BatchRecord]", requests: int) -> None:
    """Half of what was refused while nothing else of ours was out; otherwise as much again."""
    assert sized(None, limits(100, 10**6), *batches).requests == requests


def test_accepted_chunks_make_the_next_ones_larger() -> None:
    """After a full queue the size doubles with every batch that is taken, up to the most."""
    size = ChunkSize(7, 2)
    requests = (("a", row, str(row), b"x\n") for row in range(20))
    found: list[int] = []
    for chunk in split(requests, limits(7, 1000), size=size, path_for=lambda n: NOWHERE):
        assert isinstance(chunk, Chunk)
        found.append(len(chunk.rows))
        size.grow()
    assert found == [2, 4, 7, 7]


@pytest.mark.parametrize(
    ("provider", "ours", "expected"),
    [
        ("openai", None, 5_000),
        ("anthropic", None, 5_000),
        ("gemini", None, 5_000),
        ("openrouter", None, 500),
        ("openai", 100, 100),
        ("openai", 20_000, 20_000),
        ("openai", 90_000, 50_000),
        ("anthropic", 100_000, 100_000),
        ("openrouter", 90_000, 5_000),
    ],
)
def test_the_usual_count_and_the_users(provider: str, ours: "int | None", expected: int) -> None:
    """Without a word of the user's a batch holds what is usual at its provider; the user may go up to the provider's limit."""
    requests = (("a", row, str(row), b"x\n") for row in range(expected + 1))
    found = split(requests, LIMITS[provider], size=sized(ours, LIMITS[provider]), path_for=lambda n: NOWHERE)
    assert [len(c.rows) for c in found if isinstance(c, Chunk)] == [expected, 1]


def test_a_partition_at_openrouter_goes_in_small_batches(simulator: SimulatorServer, tmp_path: Path) -> None:
    """501 rows are two batches there, of which the end of the window can take one; every row is answered."""
    shop = Shop(simulator, tmp_path, provider="openrouter")
    entry, _ = shop.open("r1", table(501))
    published = shop.finish(entry, "r1")
    assert sorted(batch.request_count for batch in published.batches) == [1, 500]
    assert shop.results(published).column("llm_status").to_pylist() == ["succeeded"] * 501


def test_the_users_count_reaches_the_line(simulator: SimulatorServer, tmp_path: Path) -> None:
    """Five rows with two in a batch are three batches."""
    shop = Shop(simulator, tmp_path, max_requests_per_batch=2)
    entry, _ = shop.open("r1", table(5))
    assert shop.results(shop.finish(entry, "r1")).column("llm_status").to_pylist() == ["succeeded"] * 5
    assert simulator.book.batches == 3
