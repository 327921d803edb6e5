"""Every error this package raises on purpose.

    LLMBatchError
    ├── ConfigurationError            the definition or the resource is wrong; nothing was spent
    │   ├── UnknownProviderError      the model string names a provider we do not know
    │   ├── MissingApiKeyError        the provider has no API key
    │   ├── UnportableSchemaError     the output type has no form the provider accepts
    │   ├── NotBatchCapableError      no provider that is configured can batch the model or the prompts
    │   ├── LedgerNotDurableError     the ledger would not outlive the run
    │   └── NobodyWakesError          no sensor would continue a waiting partition
    ├── InputError                    the input table cannot be used as it is; nothing was spent
    ├── ProviderError                 what a provider's API answered or failed to answer
    │   ├── TransientProviderError    may work later: connection, timeout, 408, 409, 5xx
    │   ├── RateLimitedError          429: may work after a wait
    │   ├── QuotaExhaustedError       no credit or spend limit reached: a person must act
    │   ├── QueueFullError            the provider's batch queue is full: wait, nothing was accepted
    │   ├── RejectedError             the provider refused the call and did nothing
    │   ├── BatchNotFoundError        the provider does not know the batch
    │   ├── CannotCancelError         the provider has no cancel: the batch runs to its end
    │   ├── AmbiguousCreateError      the create call may or may not have been accepted
    │   ├── StatusUnreadableError     the status of a batch could not be read several times in a row
    │   └── BatchUnprovenError        a batch may be ours and cannot be proven yet: look again later
    ├── ProviderMismatchError         a batch of one provider was asked for at another
    ├── BatchNotAdoptableError        a create call may have bought a batch that can never be proven ours
    ├── RowsUnansweredError           a partition was given up with rows left
    └── LedgerError                   the ledger refused or contradicts itself
        ├── LeaseLostError            another run took the partition over
        └── LedgerVersionError        the ledger was written by a newer version

Messages say what happened, to which asset, partition and row, and what to do next. They never hold a
key, a prompt or an answer.
"""


class LLMBatchError(Exception):
    """Base of every error raised on purpose. `retryable` says whether running again may mend it."""

    retryable: bool = False


class ConfigurationError(LLMBatchError):
    """The definition or the resource is wrong; nothing was spent."""


class UnknownProviderError(ConfigurationError):
    """The model string names a provider we do not know."""


class MissingApiKeyError(ConfigurationError):
    """The provider has no API key."""


class UnportableSchemaError(ConfigurationError):
    """The output type has no form the provider accepts.

    Attributes:
        path: where in the type, such as `items[].price`; `$` is the root.
        provider: the provider that cannot take it, or None where no provider can.
    """

    def __init__(self, message: str, *, path: str = "$", provider: "str | None" = None) -> None:
        super().__init__(message)
        self.path = path
        self.provider = provider


class NotBatchCapableError(ConfigurationError):
    """No provider that is configured can batch the model or the prompts."""


class LedgerNotDurableError(ConfigurationError):
    """The ledger would not outlive the run."""


class NobodyWakesError(ConfigurationError):
    """No sensor would continue a waiting partition."""


class InputError(LLMBatchError):
    """The input table cannot be used as it is; nothing was spent."""


class ProviderError(LLMBatchError):
    """What a provider's API answered or failed to answer.

    Attributes:
        provider: `openai`, ...
        status_code: the HTTP status, or None where there was no answer.
        code: the provider's own error code, or None.
        retry_after: seconds the provider asked to wait, or None.
        category: why, by a stable name (`providers.contract.ErrorCategory`), or None.
        hint: what to do about it, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        provider: str,
        status_code: "int | None" = None,
        code: "str | None" = None,
        retry_after: "float | None" = None,
        category: "str | None" = None,
        hint: "str | None" = None,
    ) -> None:
        super().__init__(message)
        self.category = category
        self.hint = hint
        self.provider = provider
        self.status_code = status_code
        self.code = code
        self.retry_after = retry_after


class TransientProviderError(ProviderError):
    """May work later: connection, timeout, 408, 409, 5xx."""

    retryable = True


class RateLimitedError(ProviderError):
    """429: may work after a wait."""

    retryable = True


class QuotaExhaustedError(ProviderError):
    """No credit or spend limit reached: a person must act."""


class QueueFullError(ProviderError):
    """The provider's batch queue is full: wait, nothing was accepted."""

    retryable = True


class RejectedError(ProviderError):
    """The provider refused the call and did nothing."""


class BatchNotFoundError(ProviderError):
    """The provider does not know the batch."""


class AmbiguousCreateError(ProviderError):
    """The create call may or may not have been accepted."""

    retryable = True


class CannotCancelError(ProviderError):
    """The provider has no cancel: the batch runs to its end, and is billed."""


class StatusUnreadableError(ProviderError):
    """The status of a batch could not be read several times in a row. That says nothing about the batch."""

    retryable = True


class BatchUnprovenError(ProviderError):
    """A batch may be ours and cannot be proven yet: look again later, and buy nothing meanwhile."""

    retryable = True


class ProviderMismatchError(LLMBatchError):
    """A batch of one provider was asked for at another. It is polled and collected where it was submitted."""


class BatchNotAdoptableError(LLMBatchError):
    """A create call may have bought a batch, and no look at the provider can prove it any more.

    Nothing is bought again unasked: `on_reclaim="resubmit"` says that paying twice is accepted.
    """


class RowsUnansweredError(LLMBatchError):
    """A partition was given up with rows left. Its answers are kept, and materializing it again buys what is missing."""


class LedgerError(LLMBatchError):
    """The ledger refused or contradicts itself."""


class LeaseLostError(LedgerError):
    """Another run took the partition over. Running again attaches to what that run does."""

    retryable = True


class LedgerVersionError(LedgerError):
    """The ledger was written by a newer version of this package."""
