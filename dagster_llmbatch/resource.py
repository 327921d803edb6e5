"""The resource: configuration into a workplace, and our errors into Dagster's Failure."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import dagster as dg
from pydantic import ConfigDict, Field, model_validator

from dagster_llmbatch import dagster_internals as internals
from dagster_llmbatch.core.advance import Workplace
from dagster_llmbatch.core.pricing import Price, PriceBook
from dagster_llmbatch.core.recipe import Policy
from dagster_llmbatch.core.results import Price as OutcomePrice
from dagster_llmbatch.errors import LedgerNotDurableError, LLMBatchError, MissingApiKeyError
from dagster_llmbatch.ledger.segments import SegmentStore
from dagster_llmbatch.ledger.sql_ledger import Ledger
from dagster_llmbatch.providers.contract import BatchProvider
from dagster_llmbatch.providers.registry import API_KEY_VARIABLES, make_provider

WORKING_FOLDER = ".llmbatch"
"""Where the ledger goes when the Dagster home is temporary."""


class OpenAIConfig(dg.Config):
    """How to reach OpenAI, or a server that speaks its batch API."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    api_key: str = Field(description='API key. Pass dg.EnvVar("OPENAI_API_KEY").', repr=False)
    base_url: str = Field(default="https://api.openai.com/v1", description="Address of the API, with /v1.")
    organization: str | None = Field(default=None, description="OpenAI organization id, where a key has several.")
    project: str | None = Field(default=None, description="OpenAI project id, where a key has several.")
    endpoint: Literal["/v1/responses", "/v1/chat/completions"] = Field(
        default="/v1/responses", description="The endpoint the batch calls for every row."
    )


class PriceConfig(dg.Config):
    """A price of your own, in USD per million tokens, at the batch rate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: float = Field(ge=0, description="USD per million input tokens.")
    output: float = Field(ge=0, description="USD per million output tokens.")
    cached: float | None = Field(default=None, ge=0, description="USD per million cached input tokens; None: as input.")


class LLMBatchResource(dg.ConfigurableResource):
    """Runs prompts over tables through a provider's batch API, and remembers in a ledger what was paid for.

    The ledger is SQLite in the Dagster home, or the PostgreSQL database of the Dagster instance where it has one; the
    segments (requests, answers) are Parquet files beside it, or below `storage_path`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    openai: OpenAIConfig | None = Field(default=None, description="OpenAI: at least its api_key.")
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
    request_timeout: float = Field(default=120.0, gt=0, description="Seconds one HTTP call may take.")
    max_attempts: int = Field(default=3, ge=1, description="Times a row may be sent before it goes to review.")
    max_requests_per_batch: int | None = Field(
        default=None, ge=1, description="Most requests in one provider batch; None: the provider's own limit."
    )
    prices: dict[str, PriceConfig] = Field(
        default={}, description="Prices of your own by model string, such as openai:my-finetune."
    )

    @model_validator(mode="before")
    @classmethod
    def _key_alone(cls, values: Any) -> Any:
        """`openai="..."` or `openai=EnvVar(...)` is short for the API key alone."""
        if isinstance(values, dict) and isinstance(values.get("openai"), str):
            return values | {"openai": {"api_key": values["openai"]}}
        return values

    def policy(self) -> Policy:
        """The rules about money and patience that follow from the configuration."""
        return Policy(
            max_attempts=self.max_attempts,
            poll_first=self.poll_interval,
            poll_factor=self.poll_backoff,
            poll_max=max(self.poll_interval, self.poll_interval_max),
            lease=max(900.0, 4 * self.request_timeout),
            max_requests_per_batch=self.max_requests_per_batch,
        )

    def provider(self, name: str) -> BatchProvider:
        """The client of one provider. Raises MissingApiKeyError where it is not configured."""
        config = {"openai": self.openai}.get(name)
        variable = API_KEY_VARIABLES.get(name, "API_KEY")
        if config is None or not config.api_key:
            raise MissingApiKeyError(
                f"LLMBatchResource has no API key for {name}: set "
                f'LLMBatchResource({name}={{"api_key": dg.EnvVar("{variable}")}}), and {variable} where the runs and the '
                "daemon start."
            )
        options = {k: v for k, v in config.model_dump().items() if k != "api_key" and v is not None}
        return make_provider(name, api_key=config.api_key, timeout=self.request_timeout, **options)

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
        self, instance: dg.DagsterInstance, provider: str, *, now: "Callable[[], float]" = time.time
    ) -> "Iterator[Workplace]":
        """Everything one partition's work needs, closed afterwards."""
        client = self.provider(provider)
        try:
            with self.ledger(instance) as (ledger, segments):
                yield Workplace(client, ledger, segments, self.policy(), self._price(provider), now=now)
        finally:
            client.close()

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

    def _price(self, provider: str) -> OutcomePrice:
        book = PriceBook({n: Price(input=p.input, output=p.output, cached=p.cached) for n, p in self.prices.items()})

        def price(asked_for: str, answered_by: "str | None", tokens: "Sequence[int | None]") -> "float | None":
            # a provider answers with a dated snapshot, which the price list may not know yet
            found = book.price(provider, answered_by or asked_for, *tokens)
            if found is None and answered_by not in (None, asked_for):
                return book.price(provider, asked_for, *tokens)
            return found

        return price


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
