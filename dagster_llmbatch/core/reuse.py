"""Answers of an older generation for rows of a newer one with an equal fingerprint: paid for once, used again."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dagster_llmbatch.core.identity import CustomIds
from dagster_llmbatch.core.outcomes import OUTCOME_SCHEMA, REQUEST_SCHEMA
from dagster_llmbatch.core.plan import BLOCK_ROWS
from dagster_llmbatch.core.requests import FINGERPRINT, ROW_ID
from dagster_llmbatch.ledger.records import BatchPhase, BatchRecord, Entry
from dagster_llmbatch.ledger.segments import SegmentStore
from dagster_llmbatch.providers.contract import OutcomeKind


def reuse(
    entry: Entry, predecessor: Entry, batches: "Sequence[BatchRecord]", segments: SegmentStore
) -> "tuple[str, str, int]":
    """Write a requests and an outcomes segment of the rows that keep an answer; returns both names and the count.

    Only complete answers are kept: a refusal or a cut-off text is bought again by the newer generation.
    """
    answers = _answers_by_fingerprint(predecessor, batches, segments)
    ids = CustomIds(entry.settings["namespace"])
    kept: list[dict[str, Any]] = []
    first = 0
    for block in segments.batches(entry.plan_segment, columns=[ROW_ID, FINGERPRINT]):
        for at, (row_id, fingerprint) in enumerate(zip(*(block.column(i).to_pylist() for i in (0, 1)), strict=True)):
            answer = answers.get(fingerprint)
            if answer is not None:
                custom_id = ids.of(row_id, fingerprint, 0)
                kept.append(answer | {"row": first + at, "custom_id": custom_id, "attempt": 0, "lane": "reused"})
        first += block.num_rows
    outcomes = pa.Table.from_pylist(kept, schema=OUTCOME_SCHEMA)
    with segments.writer("outcomes", OUTCOME_SCHEMA, row_group_rows=BLOCK_ROWS) as outcomes_writer:
        outcomes_writer.write(outcomes)
    with segments.writer("requests", REQUEST_SCHEMA, row_group_rows=BLOCK_ROWS) as requests_writer:
        requests_writer.write(outcomes.select(REQUEST_SCHEMA.names).cast(REQUEST_SCHEMA))
    return requests_writer.name, outcomes_writer.name, len(kept)


def _answers_by_fingerprint(
    entry: Entry, batches: "Sequence[BatchRecord]", segments: SegmentStore
) -> "dict[str, dict[str, Any]]":
    fingerprints = segments.table(entry.plan_segment, columns=[FINGERPRINT]).column(FINGERPRINT).to_pylist()
    found: dict[str, dict[str, Any]] = {}
    for batch in batches:
        if batch.phase is not BatchPhase.COLLECTED or batch.outcomes_segment is None:
            continue
        for block in segments.batches(batch.outcomes_segment):
            for outcome in block.to_pylist():
                if outcome["kind"] == OutcomeKind.ANSWER.value:
                    found.setdefault(fingerprints[outcome["row"]], outcome)
    return found
