"""Batch or realtime: decided once a partition, before anything is bought."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from dagster_llmbatch.errors import NotBatchCapableError
from dagster_llmbatch.providers.content import PartKind
from dagster_llmbatch.providers.contract import Mode

LanePolicy = Literal["auto", "batch", "realtime"]
"""What an asset says about its lane. "auto": batches where they are possible and worth the wait."""
BATCH_ABOVE = 20
"""Rows from which on "auto" takes a batch, itself included."""


@dataclass(frozen=True)
class Lane:
    """How the rows of a partition are sent, and why."""

    mode: Mode
    reason: str


def choose_lane(
    policy: LanePolicy,
    rows: int,
    *,
    batch_above: int = BATCH_ABOVE,
    why_not_batch: "str | None" = None,
    parts: "Collection[PartKind]" = (),
    batch_parts: "Collection[PartKind]" = (PartKind.TEXT,),
) -> Lane:
    """The lane of one partition.

    Args:
        policy: the asset's.
        rows: how many have to be sent.
        batch_above: rows from which on "auto" takes a batch.
        why_not_batch: why no provider batches the model (what `resolve` raised); None: one does.
        parts: kinds of content parts in the rows' prompts.
        batch_parts: those the provider takes in a batch (`Limits.batch_parts`).

    Raises NotBatchCapableError where the policy is "batch" and there can be none.
    """
    if policy == "realtime":
        return Lane("realtime", 'policy is "realtime"')
    obstacle = why_not_batch or _beyond(parts, batch_parts)
    if policy == "batch":
        if obstacle is not None:
            raise NotBatchCapableError(
                f'policy is "batch", and there can be no batch: {obstacle}. Nothing was spent. LLMBatchResource.complete '
                "makes single realtime calls."
            )
        return Lane("batch", 'policy is "batch"')
    if rows < batch_above:
        return Lane("realtime", f"{rows} rows are fewer than batch_above={batch_above}")
    if obstacle is not None:
        return Lane("realtime", obstacle)
    return Lane("batch", f"{rows} rows reach batch_above={batch_above}")


def _beyond(parts: "Collection[PartKind]", batch_parts: "Collection[PartKind]") -> "str | None":
    """Why the prompts cannot be batched; None where they can."""
    refused = sorted({part.value for part in parts} - {part.value for part in batch_parts})
    return f"prompts hold {', '.join(refused)} parts, which the provider takes in no batch" if refused else None
