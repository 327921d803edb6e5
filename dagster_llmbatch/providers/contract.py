"""What every provider speaks to the rest of the package: plain records and one protocol.

Knows nothing of Dagster, of the ledger or of prompts. A provider's differences stay in its own file; what the
core must know of them is a field of `Limits`.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from dagster_llmbatch.errors import ProviderMismatchError
from dagster_llmbatch.providers.content import Content, PartKind
from dagster_llmbatch.providers.handles import BatchHandle

Mode = Literal["batch", "realtime"]
"""How a request is sent."""


class OutcomeKind(str, Enum):
    """What came back for one request."""

    ANSWER = "answer"
    """A complete text; whether it is valid is not the provider's business."""
    REFUSAL = "refusal"
    """The model declined, or a content filter stopped it. Billed."""
    TRUNCATED = "truncated"
    """The output cap cut it off, whatever text there is. Billed."""
    EMPTY = "empty"
    """A finished reply without any text. Billed."""
    PROVIDER_ERROR = "provider_error"
    """The provider answered with an error instead of a reply."""
    EXPIRED = "expired"
    """Not run before the batch's window closed. Not billed."""
    CANCELLED = "cancelled"
    """Not run because the batch was cancelled. Not billed."""
    MISSING = "missing"
    """Sent, and in no result file of an ended batch. Made by the core, never by a provider."""
    RESULTS_EXPIRED = "results_expired"
    """Not collected before the provider stopped keeping the results. Perhaps billed. Made by the core as well."""


class ErrorCategory(str, Enum):
    """Stable names for why there is no answer (column `llm_error_category`)."""

    API_TIMEOUT = "api_timeout"
    RATE_LIMIT = "rate_limit"
    QUEUE_FULL = "queue_full"
    """The provider's batch queue is full: nothing is wrong with the requests."""
    VALIDATION_ERROR = "validation_error"
    INSUFFICIENT_BALANCE = "insufficient_balance"
    CONTEXT_OVERFLOW = "context_overflow"
    AUTH = "auth"
    CLIENT_ERROR = "client_error"
    SERVER_ERROR = "server_error"
    CONNECTION_ERROR = "connection_error"
    REFUSED = "refused"
    TRUNCATED = "truncated"
    EMPTY = "empty"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    MISSING = "missing"
    TOO_LARGE = "too_large"
    UNKNOWN = "unknown"


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What a provider returned for one request, provider-neutral.

    Token counts are None where unknown and 0 where the provider said 0. `input_tokens` includes cached and
    cache-write tokens; `output_tokens` includes reasoning tokens.
    """

    custom_id: str
    kind: OutcomeKind
    text: "str | None" = None
    finish_reason: "str | None" = None
    refusal: "str | None" = None
    model: "str | None" = None
    input_tokens: "int | None" = None
    output_tokens: "int | None" = None
    cached_tokens: "int | None" = None
    cache_write_tokens: "int | None" = None
    reasoning_tokens: "int | None" = None
    error_code: "str | None" = None
    error_message: "str | None" = None
    error_category: "ErrorCategory | None" = None
    retryable: bool = False
    """Whether sending the same request again may bring an answer."""
    cost_usd: "float | None" = None
    """USD, where the provider itself says what the request cost; None: to be priced from its tokens."""
    reasoning: "str | None" = None
    """Reasoning text the provider shows. This and the fields below are read only where asked for (EXTRAS)."""
    tool_calls: "str | None" = None
    """JSON list of {id, name, arguments}; arguments is the raw JSON text."""
    logprobs: "str | None" = None
    """JSON, as the provider gives it."""
    grounding: "str | None" = None
    """JSON of what the answer rests on: citations, sources, search queries; as the provider gives it."""
    response: "str | None" = None
    """JSON of the whole reply."""
    cache_write_1h_tokens: "int | None" = None
    """Of `cache_write_tokens`, those kept for an hour, where they have a price of their own."""


EXTRAS = ("reasoning", "tool_calls", "logprobs", "grounding", "response")
"""Fields of an Outcome that are read only where asked for."""


class BatchState(str, Enum):
    """A batch's state, provider-neutral."""

    RUNNING = "running"
    CANCELLING = "cancelling"
    UNKNOWN = "unknown"
    """A state name we have not met: keep polling, and say so."""
    COMPLETED = "completed"
    FAILED = "failed"
    """Refused as a whole: nothing ran."""
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing will change any more and the results can be collected."""
        return self in _ENDED


_ENDED = frozenset({BatchState.COMPLETED, BatchState.FAILED, BatchState.EXPIRED, BatchState.CANCELLED})


@dataclass(frozen=True)
class Uploaded:
    """What was handed to the provider before the create call. Plain strings, kept in the ledger."""

    refs: "Mapping[str, str]" = field(default_factory=dict)


Progress = Literal["pending", "processing", "completed", "failed"]


@dataclass(frozen=True)
class BatchStatus:
    """One look at a batch. Times are unix seconds; counts are None where the provider does not say."""

    handle: BatchHandle
    state: BatchState
    provider_state: str
    total: "int | None" = None
    completed: "int | None" = None
    failed: "int | None" = None
    created_at: "float | None" = None
    expires_at: "float | None" = None
    ended_at: "float | None" = None
    result_refs: "Mapping[str, str]" = field(default_factory=dict)
    """Where the results are, by name: `output_file_id`, `error_file_id`."""
    error_code: "str | None" = None
    error_message: "str | None" = None
    """Why the batch as a whole failed: the provider's first entry."""
    queue_full: bool = False
    """Failed only because the provider's queue was full: nothing is wrong with the requests."""
    retryable: bool = False
    """Failed as a whole for a passing reason: its requests may be sent again, which uses up an attempt."""
    cost_usd: "float | None" = None
    """USD for the whole batch, where the provider says so."""

    @property
    def progress(self) -> Progress:
        """The state in four words; `provider_state` keeps the provider's own.

        `pending`: no request is through yet, as far as the provider counts them while a batch runs. `completed` says nothing
        of single rows.
        """
        if self.state is BatchState.FAILED:
            return "failed"
        if self.state.ended:
            return "completed"
        return "processing" if self.completed or self.failed else "pending"


@dataclass(frozen=True)
class Search:
    """What is known of a batch whose create call gave no clear answer."""

    external_key: str
    uploaded: Uploaded
    since: float
    """Unix seconds of the earliest create call that may have made it."""
    custom_ids: "Collection[str]"
    """All custom ids sent: what proves a batch that carries no name of ours."""
    known: "Collection[str]" = ()
    """Ids of batches that are recorded already, so they are not this one."""


@dataclass(frozen=True)
class Limits:
    """What a provider's batch API allows and can do, with the day it was read. Bytes count the encoded input."""

    max_requests: int
    """What the API takes in one batch."""
    max_bytes: int
    window: float
    """Seconds the provider gives itself to finish a batch."""
    cancel_settle: float
    """Seconds to wait after a cancel before resubmitting anything."""
    retention: float
    """Seconds the results stay available after the batch ended."""
    as_of: str
    source: str
    usual_requests: "int | None" = None
    """What we put in one batch where the user says no number; None: `max_requests`."""
    appears_within: float = 60.0
    """Seconds after the create call within which a batch may be missing from the provider's lists."""
    can_cancel: bool = True
    batch_parts: "frozenset[PartKind]" = frozenset({PartKind.TEXT})
    """Kinds of content parts a batch takes."""
    realtime_parts: "frozenset[PartKind]" = frozenset({PartKind.TEXT})
    """Kinds of content parts a realtime call takes."""


@dataclass(frozen=True)
class RequestTemplate:
    """What all requests of a group share; with a prompt it becomes a request."""

    model: str
    """The provider's model id, without our provider prefix."""
    system: "str | None" = None
    params: "Mapping[str, Any]" = field(default_factory=dict)
    """Passed through to the provider in the request body."""
    schema: "Mapping[str, Any] | None" = None
    """JSON Schema of the answer in the provider's dialect for the mode it is sent in, or None for plain text."""
    schema_name: str = "answer"


class RequestEncoder(Protocol):
    """Turns prompts into the provider's request lines. Made once a template, called once a row."""

    identity: bytes
    """The bytes of the template that decide what an answer means: without the output cap, and the same in every
    process. Part of a row's fingerprint."""

    def line(self, custom_id: str, prompt: Content) -> bytes:
        """One line of the file of requests, with its newline."""
        ...


class BatchProvider(Protocol):
    """One provider: its batch API and one realtime call.

    Every method may raise `ProviderError`s. All but `create` and `complete` retry what is safe to retry and may be called
    again. Methods that take a handle raise ProviderMismatchError for one of another provider.
    """

    name: str
    limits: Limits

    def encoder(self, template: RequestTemplate) -> RequestEncoder:
        """The encoder of requests of one template. Raises ConfigurationError for params that cannot be batched."""
        ...

    def group(self, template: RequestTemplate) -> str:
        """Requests of equal groups may share a batch."""
        ...

    def upload(self, requests: Path, *, external_key: str) -> Uploaded:
        """Hand the file of request lines over, where the provider takes files. Costs nothing; a duplicate is an unbilled
        orphan. Never empty: its refs are what a later search has to go by."""
        ...

    def create(
        self, requests: Path, uploaded: Uploaded, *, template: RequestTemplate, external_key: str
    ) -> BatchStatus:
        """The paid call: exactly one POST, never resent.

        Args:
            requests: the file of request lines, for providers that take them inline.
            uploaded: what `upload` returned for it.
            template: of any of its requests; they are of one group.

        Raises AmbiguousCreateError where the provider may have accepted it; RejectedError, QuotaExhaustedError,
        RateLimitedError, QueueFullError or TransientProviderError (connection never made) where it provably did not.
        """
        ...

    def find(self, search: Search) -> "BatchStatus | None":
        """Look once for the batch that an earlier create may have made.

        Raises BatchUnprovenError where a batch may be the one and cannot be proven yet: look again later.
        """
        ...

    def status(self, handle: BatchHandle) -> BatchStatus:
        """Look at a batch. Raises BatchNotFoundError where the provider does not know it."""
        ...

    def outcomes(self, status: BatchStatus, *, extras: "Collection[str]" = ()) -> Iterator[Outcome]:
        """Stream every outcome of an ended batch, from every result file there is, in the provider's order.

        A line that cannot be read is skipped with a warning in the log: its request ends up missing, not lost silently.
        `extras`: which of EXTRAS to read as well.
        """
        ...

    def cancel(self, handle: BatchHandle) -> BatchStatus:
        """Ask the provider to stop. What it finished stays collectable. Raises CannotCancelError where there is no cancel."""
        ...

    def delete_files(self, status: BatchStatus) -> None:
        """Delete what was uploaded and produced for this batch."""
        ...

    def complete(self, template: RequestTemplate, prompt: Content, *, extras: "Collection[str]" = ()) -> Outcome:
        """One realtime call, sent once: a reply that is lost may have been billed. Raises ProviderErrors for any HTTP error;
        what a reply says of itself (refusal, cut off) is in the outcome."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def expect(handle: BatchHandle, provider: str) -> None:
    """Raise ProviderMismatchError unless the handle is the provider's own."""
    if handle.provider != provider:
        raise ProviderMismatchError(
            f"batch {handle.batch_id} was submitted to {handle.provider}: it is polled and collected there, never at "
            f"{provider}."
        )
