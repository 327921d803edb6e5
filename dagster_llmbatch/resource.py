"""The resource: configuration into a workplace, and our errors into Dagster's Failure."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypedDict

import dagster as dg
from pydantic import Field, ValidationError

from dagster_llmbatch import dagster_internals as internals
from dagster_llmbatch.core import single_batch
from dagster_llmbatch.core.recipe import Policy
from dagster_llmbatch.core.single_batch import LLMRequest, LLMResult, Output
from dagster_llmbatch.core.workplace import Workplace
from dagster_llmbatch.errors import ConfigurationError, InputError, LedgerNotDurableError, LLMBatchError
from dagster_llmbatch.ledger.records import Entry
from dagster_llmbatch.ledger.segments import SegmentStore
from dagster_llmbatch.ledger.sql_ledger import Ledger
from dagster_llmbatch.provider_resource import ProviderResource
from dagster_llmbatch.providers.contract import BatchHandle, BatchStatus

WORKING_FOLDER = ".llmbatch"
"""Where the ledger goes when the Dagster home is temporary."""


class BatchOptions(TypedDict, total=False):
    """What an asset may say differently from its LLMBatchResource, by the names of the resource's fields."""

    max_requests_per_batch: int
    max_attempts: int
    poll_interval: float
    poll_backoff: float
    poll_interval_max: float
    on_reclaim: Literal["adopt", "resubmit"]
    on_queue_full: Literal["wait", "fail"]


OPTION_NAMES = tuple(BatchOptions.__annotations__)
BATCH_OPTIONS = "batch_options"
"""Where a plan's settings keep its asset's options."""


class LLMBatchResource(ProviderResource):
    """Runs prompts over tables through a provider's batch API, and remembers in a ledger what was paid for.

    The ledger is SQLite in the Dagster home, or the PostgreSQL database of the Dagster instance where it has one; the
    segments (requests, answers) are Parquet files beside it, or below `storage_path`.
    """

    storage_path: str | None = Field(
        default=None,
        description="Folder or object store URL (s3://, gs://, az://) for the ledger's Parquet segments.",
    )
    ledger_url: str | None = Field(
        default=None, description="SQLAlchemy URL of the ledger; None: follow the Dagster instance.", repr=False
    )
    namespace: str = Field(
        default="default",
        min_length=1,
        description="Keeps deployments apart that share a ledger or a provider key, such as staging and production.",
    )
    poll_interval: float = Field(default=60.0, gt=0, description="Seconds before a batch is polled first.")
    poll_backoff: float = Field(default=1.5, ge=1, description="Factor from one poll interval to the next.")
    poll_interval_max: float = Field(default=600.0, gt=0, description="Longest poll interval, in seconds.")
    max_attempts: int = Field(default=3, ge=1, description="Times a row may be sent before it goes to review.")
    max_requests_per_batch: int | None = Field(
        default=None,
        ge=1,
        description="Most requests in one provider batch, up to the provider's own limit; None: 5,000, at OpenRouter 500.",
    )
    on_reclaim: Literal["adopt", "resubmit"] = Field(
        default="adopt",
        description="What to do about a batch that may exist at the provider and cannot be proven ours: wait for proof, or "
        "buy again at the risk of paying twice.",
    )
    on_queue_full: Literal["wait", "fail"] = Field(
        default="wait",
        description="What a run does when the provider's batch queue is full: wait and send again, smaller if need be, or "
        "fail. Nothing is lost, and no attempt is used up.",
    )
    max_batches_in_progress: int | None = Field(
        default=None, gt=0, description="Batches of one provider that may be out at once, over all partitions."
    )
    cancel_on_terminate: bool = Field(
        default=True,
        description='Whether terminating a run that waits in itself (wait="block") cancels its batches at the provider. '
        "What they finished is kept, and the next run of the partition goes on.",
    )

    def policy(self, options: "Mapping[str, Any] | None" = None) -> Policy:
        """The rules about money and patience that follow from the configuration and an asset's BatchOptions."""
        said: dict[str, Any] = {name: getattr(self, name) for name in OPTION_NAMES} | dict(options or {})
        return Policy(
            max_attempts=said["max_attempts"],
            poll_first=said["poll_interval"],
            poll_factor=said["poll_backoff"],
            poll_max=max(said["poll_interval"], said["poll_interval_max"]),
            lease=max(900.0, 4 * self.request_timeout),
            max_requests_per_batch=said["max_requests_per_batch"],
            on_reclaim=said["on_reclaim"],
            on_queue_full=said["on_queue_full"],
            max_batches_in_progress=self.max_batches_in_progress,
        )

    def policy_of(self, entry: Entry) -> Policy:
        """The rules of a partition, by what was stored with its plan: for those who do not see its asset."""
        return self.policy(entry.settings.get(BATCH_OPTIONS))

    def submit(self, requests: "Iterable[LLMRequest]", *, external_key: "str | None" = None) -> BatchHandle:
        """Create one provider batch, outside any asset and ledger; the handle is plain data (`to_json`, `from_json`).

        All requests are of one provider, and of one group as it needs (model, schema or headers).

        Args:
            requests: what to ask.
            external_key: a name of your own for the batch. Called again with the same one after a crash or an
                AmbiguousCreateError, the batch is found and not bought again. Anthropic and OpenRouter keep no name: there a
                batch is known by its custom ids, so give each batch ids of its own.
        """
        with self.clients() as clients:
            asked = iter(requests)
            first = next(asked, None)
            if first is None:
                raise InputError("there are no requests to submit.")
            provider = clients.of(self.resolve(first.model).provider)
            status = single_batch.submit(
                chain([first], asked),
                provider,
                model_id_of=partial(self._model_id, provider.name),
                external_key=external_key,
            )
        return status.handle

    def status(self, handle: BatchHandle) -> BatchStatus:
        """Look at a batch: `progress` in four words, `provider_state` in the provider's."""
        with self.clients() as clients:
            return clients.of(handle.provider).status(handle)

    def results(
        self,
        handle: BatchHandle,
        *,
        output: Output = None,
        outputs: "Mapping[str, Output] | None" = None,
        extras: "Collection[str]" = (),
    ) -> "Iterator[LLMResult]":
        """The results of an ended batch, in the provider's order, each once it is read.

        Args:
            handle: of `submit`.
            output: the output type of all requests, which validates their answers; without one they are not validated.
            outputs: output types by custom id, before `output`.
            extras: further fields of the reply to keep in the outcomes (`providers.contract.EXTRAS`).
        """
        with self.clients() as clients:
            provider = clients.of(handle.provider)
            status = provider.status(handle)
            if not status.state.ended:
                raise InputError(f"batch {handle.batch_id} is {status.provider_state}: there are no results yet.")
            own = outputs or {}
            found = single_batch.results(
                provider.outcomes(status, extras=extras), lambda custom_id: own.get(custom_id, output)
            )
            prices = self.price_book()
            for result in found:
                yield single_batch.priced(result, prices, provider=handle.provider, mode="batch")

    def cancel(self, handle: BatchHandle) -> BatchStatus:
        """Ask the provider to stop a batch. Raises CannotCancelError where there is no cancel."""
        with self.clients() as clients:
            return clients.of(handle.provider).cancel(handle)

    def run_batch(
        self,
        requests: "Iterable[LLMRequest]",
        *,
        external_key: str,
        extras: "Collection[str]" = (),
        sleep: "Callable[[float], None]" = time.sleep,
    ) -> "list[LLMResult]":
        """`submit`, wait by the poll intervals, and give each request its result, in their order.

        Args:
            requests: of one batch, as of `submit`.
            external_key: the batch's name. A call that was cut off finds the batch again by it and buys nothing, also
                where it raised AmbiguousCreateError, or BatchUnprovenError: then the batch is not proven ours yet.
            extras: as of `results`.
            sleep: takes seconds.
        """
        asked = list(requests)
        handle = self.submit(asked, external_key=external_key)
        policy, prices = self.policy(), self.price_book()
        interval: float | None = None
        with self.clients() as clients:
            provider = clients.of(handle.provider)
            while not (status := provider.status(handle)).state.ended:
                interval = policy.next_poll(interval)
                sleep(interval)
            found = single_batch.results_in_order(asked, status, provider, extras=extras)
            return [single_batch.priced(r, prices, provider=handle.provider, mode="batch") for r in found]

    def complete(self, request: LLMRequest, *, extras: "Collection[str]" = ()) -> LLMResult:
        """One realtime call at the full price, validated. Asked once: an answer that is lost may have been billed."""
        spec = self.model_spec(request.model)
        with self.clients() as clients:
            found = single_batch.complete(
                request, clients.of(spec.provider), model_id_of=lambda _: spec.model, extras=extras
            )
        return single_batch.priced(found, self.price_book(), provider=spec.provider, mode="realtime", model=spec.model)

    def _model_id(self, provider: str, model: str) -> str:
        found = self.resolve(model)
        if found.provider != provider:
            raise InputError(f"model {model!r} is batched at {found.provider}, and the batch is one of {provider}.")
        return found.model

    @contextmanager
    def ledger(self, instance: dg.DagsterInstance) -> "Iterator[tuple[Ledger, SegmentStore]]":
        """The ledger and its segments. Raises LedgerNotDurableError where they would not outlive the run."""
        url, root = self._places(instance)
        ledger = Ledger(url)
        try:
            yield ledger, SegmentStore(root)
        finally:
            ledger.close()

    @contextmanager
    def workplace(
        self,
        instance: dg.DagsterInstance,
        *,
        options: "Mapping[str, Any] | None" = None,
        now: "Callable[[], float]" = time.time,
    ) -> "Iterator[Workplace]":
        """Everything one partition's work needs, closed afterwards. `options`: its asset's BatchOptions."""
        with self.clients() as clients, self.ledger(instance) as (ledger, segments):
            yield Workplace(clients.of, ledger, segments, self.policy(options), self.price_book(), now=now)

    def is_in_working_folder(self, instance: dg.DagsterInstance) -> bool:
        """Whether the ledger goes to `.llmbatch/` because the Dagster home is temporary."""
        return self.ledger_url is None and internals.is_temporary(instance)

    def _places(self, instance: dg.DagsterInstance) -> "tuple[str, str]":
        home = Path(WORKING_FOLDER).absolute()
        if not internals.is_temporary(instance):
            home = Path(instance.storage_directory()) / "llmbatch"
        url = self.ledger_url or internals.postgres_url(instance) or f"sqlite:///{home / 'ledger.db'}"
        root = self.storage_path or str(home / "segments")
        launcher = internals.launches_elsewhere(instance)
        if launcher is not None:
            self._refuse_local(url, root, launcher)
        return url, root

    @staticmethod
    def _refuse_local(url: str, root: str, launcher: str) -> None:
        local = [name for name, value in (("ledger_url", url), ("storage_path", root)) if _is_local(value)]
        if local:
            raise LedgerNotDurableError(
                f"Runs start through {launcher}, perhaps on another machine, and {' and '.join(local)} would be a local "
                "path there: the next run would not find what this one paid for. Nothing was spent. Give ledger_url a "
                "PostgreSQL URL and storage_path an object store such as s3://bucket/llmbatch."
            )


def _is_local(place: str) -> bool:
    scheme = place.split("://", 1)[0] if "://" in place else "file"
    return scheme in ("file", "local", "memory") or scheme.startswith("sqlite")


@contextmanager
def failures() -> "Iterator[None]":
    """Our errors as Dagster failures: without step retries where running again cannot mend it."""
    try:
        yield
    except LLMBatchError as error:
        raise dg.Failure(
            description=str(error),
            metadata={"llmbatch/error": type(error).__name__},
            allow_retries=error.retryable,
        ) from error


def check_options(options: "Mapping[str, Any]", *, asset: str) -> "dict[str, Any]":
    """An asset's options. Raises ConfigurationError for other names, and for values that the resource would refuse."""
    strange = sorted(set(options) - set(OPTION_NAMES))
    if strange:
        raise ConfigurationError(f"{asset}: batch_options has no {strange}; there are {list(OPTION_NAMES)}.")
    try:
        LLMBatchResource(**options)
    except ValidationError as error:
        wrong = error.errors()[0]
        name = ".".join(map(str, wrong["loc"]))
        raise ConfigurationError(f"{asset}: batch_options, {name}: {wrong['msg']}.") from None
    return dict(options)
