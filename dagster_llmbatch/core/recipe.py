"""What an asset asks of a model, and the rules about money it does that under. Plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dagster_llmbatch.core.by_row import ByRow
from dagster_llmbatch.core.identity import canonical_json, digest
from dagster_llmbatch.core.prompt import Prompt, prompt_source
from dagster_llmbatch.core.row_ids import IdColumn
from dagster_llmbatch.errors import ConfigurationError
from dagster_llmbatch.schemas.output import OutputSchema

FORMAT_VERSION = 1
"""Of the plan segment and the results table; part of every digest, so that a new layout is a new plan."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what is asked for each row and how the answer is read."""

    asset: str
    """The asset key as a user writes it, for errors."""
    provider: "str | None"
    """None: `model` is a name in the resource's `models`, which only a run can look up."""
    model: str
    """The provider's model id, without the provider prefix."""
    prompt: Prompt
    output: OutputSchema
    system: "str | None" = None
    params: "Mapping[str, Any]" = field(default_factory=dict)
    id_column: "IdColumn | None" = None
    keep_columns: "tuple[str, ...] | None" = None
    """Input columns carried into the result; None: all."""
    by_row: "Mapping[str, ByRow]" = field(default_factory=dict)
    """What rows choose themselves, by `row_model`, `row_system` and `row_params`."""
    extras: "tuple[str, ...]" = ()
    """Further fields of the reply that become columns: names of providers.contract.EXTRAS."""
    batch_provider: "str | None" = None
    """The provider whose batch API is to be used, whatever the model's vendor is."""

    @property
    def model_string(self) -> str:
        """The model as a user writes it."""
        return self.model if self.provider is None else f"{self.provider}:{self.model}"

    def code_version(self) -> str:
        """A digest of what would change the answers: model, prompt, system, params, output schema, our format."""
        try:
            params = canonical_json(dict(self.params))
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"{self.asset}: params must be JSON values (text, numbers, true/false, null, lists, objects): {error}"
            ) from None
        return digest(
            str(FORMAT_VERSION),
            self.provider or "",
            self.model,
            prompt_source(self.prompt),
            self.system or "",
            params,
            self.output.digest,
            *(part for name in sorted(self.by_row) for part in (name, prompt_source(self.by_row[name]))),
            *self.extras,
        )[:32]


@dataclass(frozen=True)
class Policy:
    """The rules of one partition's work. Times in seconds."""

    max_attempts: int = 3
    """Times a row may be sent before it goes to review."""
    poll_first: float = 60.0
    poll_factor: float = 1.5
    poll_max: float = 600.0
    failed_checks: int = 3
    """Status calls that may fail in a row before it is an error."""
    wave_grace: float = 7200.0
    """Beyond the provider's window before a batch is cancelled. The deadline is fixed at its create."""
    queue_wait: float = 300.0
    """Before a batch that met a full queue is sent again."""
    on_queue_full: Literal["wait", "fail"] = "wait"
    """What a run does about a full queue; nothing is lost either way."""
    max_batches_in_progress: "int | None" = None
    """Of one provider's, over all partitions of the ledger; None: as many as the provider takes."""
    lease: float = 900.0
    """How long an owner may be silent before another run takes over: longer than any request timeout."""
    max_requests_per_batch: "int | None" = None
    """Below the provider's own limit; None: the provider's."""
    look_again: "tuple[float, ...]" = (0.0, 5.0, 15.0)
    """Waits between looks for a batch whose create call gave no clear answer."""
    on_reclaim: Literal["adopt", "resubmit"] = "adopt"
    """What to do about a batch that may be ours and cannot be proven: `adopt` buys nothing until it is, `resubmit` buys
    again, at the risk of paying twice."""

    def next_poll(self, interval: "float | None") -> float:
        """The next poll interval after one of `interval` seconds; None: the first."""
        return self.poll_first if interval is None else min(interval * self.poll_factor, self.poll_max)
