"""What the ledger holds, as plain records. Times are unix seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class EntryState(str, Enum):
    """The state of one generation of a partition."""

    PENDING = "pending"
    PUBLISHED = "published"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    """A newer generation took over its answers before it was published."""


class BatchPhase(str, Enum):
    """How far we are with one provider batch."""

    INTENT = "intent"
    """About to be uploaded. Nothing can have been created."""
    UPLOADED = "uploaded"
    """The create call may have been made; its answer is not recorded."""
    SUBMITTED = "submitted"
    """The provider's handle is recorded."""
    ENDED = "ended"
    """Nothing will change at the provider any more; the results are not collected."""
    COLLECTED = "collected"


class CancelReason(str, Enum):
    """Why we stopped a batch. Its rows without an answer go again, except where a person wanted none of them."""

    DEADLINE = "deadline"
    TERMINATED = "terminated"
    """The run that waited for it was terminated: a later run of the partition goes on."""
    OPERATOR = "operator"


@dataclass(frozen=True)
class EntryKey:
    """Which partition of which asset. `partition_key` is '' for an unpartitioned asset."""

    namespace: str
    asset_key: str
    partition_key: str = ""

    def __str__(self) -> str:
        return f"{self.asset_key}, partition {self.partition_key}" if self.partition_key else self.asset_key


@dataclass(frozen=True)
class Entry:
    """One purchase of one partition: a generation."""

    id: str
    key: EntryKey
    generation: int
    state: EntryState
    plan_digest: str
    plan_segment: str
    row_count: int
    settings: "Mapping[str, Any]"
    predecessor_id: "str | None"
    """The older generation whose answers are kept for unchanged rows."""
    wave: int
    """The newest wave begun; 0: nothing was sent yet."""
    owner: "str | None"
    """The run that may spend now."""
    lease_until: "float | None"
    fence: int
    """Grows with every change of owner: a run that was silent too long finds a larger one and stops."""
    created_at: float
    published_at: "float | None" = None
    results_segment: "str | None" = None
    summary: "Mapping[str, Any] | None" = None
    failure: "str | None" = None


@dataclass(frozen=True)
class BatchRecord:
    """One provider batch, from the intent on. Wave 0 holds answers taken over from an older generation."""

    id: str
    entry_id: str
    wave: int
    chunk: int
    external_key: str
    provider: str
    phase: BatchPhase
    request_count: int
    request_bytes: int
    requests_segment: str
    intent_at: float
    refs: "Mapping[str, str]" = field(default_factory=dict)
    """What was uploaded, by name."""
    create_at: "float | None" = None
    """When the create call was made last; None: no call, or one that was provably refused."""
    batch_id: "str | None" = None
    handle: "Mapping[str, Any] | None" = None
    outcomes_segment: "str | None" = None
    provider_state: "str | None" = None
    total: "int | None" = None
    completed: "int | None" = None
    failed: "int | None" = None
    status: "Mapping[str, Any] | None" = None
    """The last status in full."""
    next_poll_at: "float | None" = None
    poll_interval: "float | None" = None
    failed_checks: int = 0
    """Status calls that failed in a row."""
    last_error: "str | None" = None
    submitted_at: "float | None" = None
    ended_at: "float | None" = None
    collected_at: "float | None" = None
    deadline: "float | None" = None
    """Fixed at the create; polls, restarts and retries never move it."""
    cancel_reason: "str | None" = None
    """Why we want the batch to stop (CancelReason); recorded before the provider is asked."""
    cancel_at: "float | None" = None
    """When the provider was asked to stop it."""


@dataclass(frozen=True)
class WaitingRun:
    """A run that ended and left a partition to be continued."""

    run_id: str
    entry_id: str
    key: EntryKey
    continuation_id: "str | None"
    since: float
    woken_at: "float | None" = None
    not_before: "float | None" = None
    """Before this there is nothing to do, however the batches stand; None: whenever they end."""
    reason: "str | None" = None
    """Why there is nothing to do before that."""
