"""Which materialization shows what a generation cost: one of them, so that their sum is the money spent."""

from collections.abc import Iterator

import dagster as dg

from dagster_llmbatch import dagster_internals as internals
from dagster_llmbatch import metadata
from dagster_llmbatch.core.advance import Published
from dagster_llmbatch.ledger.records import Entry

PAGE = 100
"""Materializations read at a time."""


def is_counted_elsewhere(context: dg.AssetExecutionContext, asset: dg.AssetKey, progress: Published) -> bool:
    """Whether another materialization shows the cost of this generation, or its run is about to.

    A generation published by a run that then failed to store the table is shown by the run that does store it.
    """
    if not progress.replayed:
        return False
    entry = progress.entry
    if any(_shows(made, entry) for made in _materializations(context.instance, asset, entry)):
        return True
    publisher = (entry.summary or {}).get("published_by")
    run = context.instance.get_run_by_id(publisher) if publisher not in (None, context.run.run_id) else None
    return run is not None and not internals.is_finished(run)


def _shows(made: dg.AssetMaterialization, entry: Entry) -> bool:
    known = {key: made.metadata[key].value for key in (metadata.ENTRY_TAG, metadata.REPLAYED) if key in made.metadata}
    return known == {metadata.ENTRY_TAG: entry.id, metadata.REPLAYED: False}


def _materializations(
    instance: dg.DagsterInstance, asset: dg.AssetKey, entry: Entry
) -> "Iterator[dg.AssetMaterialization]":
    """Of the entry's partition, since the entry was made, the newest first."""
    partition = entry.key.partition_key
    wanted = dg.AssetRecordsFilter(
        asset_key=asset, asset_partitions=[partition] if partition else None, after_timestamp=entry.created_at
    )
    cursor = None
    while True:
        page = instance.fetch_materializations(wanted, limit=PAGE, cursor=cursor)
        yield from (record.asset_materialization for record in page.records if record.asset_materialization)
        if not page.has_more:
            return
        cursor = page.cursor
