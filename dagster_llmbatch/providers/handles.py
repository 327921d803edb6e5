"""The handle of a provider batch: plain data that outlives processes and versions of this package."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dagster_llmbatch.errors import InputError

HANDLE_VERSION = 1
"""Of the JSON form of a handle. The first one did not say its version."""


@dataclass(frozen=True)
class BatchHandle:
    """What is recorded to find a batch again. Survives JSON."""

    provider: str
    batch_id: str
    refs: "Mapping[str, str]" = field(default_factory=dict)
    """Further ids by name, such as `input_file_id`."""

    def to_json(self) -> "dict[str, Any]":
        """Plain data: survives JSON."""
        return {
            "version": HANDLE_VERSION,
            "provider": self.provider,
            "batch_id": self.batch_id,
            "refs": dict(self.refs),
        }

    @classmethod
    def from_json(cls, stored: "Mapping[str, Any]") -> "BatchHandle":
        """A handle back from `to_json`, of this version of the package or an earlier one.

        Raises InputError for a later one's, which may mean something by its fields that is not known here.
        """
        version = stored.get("version", HANDLE_VERSION)
        if version > HANDLE_VERSION:
            raise InputError(
                f"the handle of batch {stored.get('batch_id')} has version {version}, and this dagster_llmbatch reads up to "
                f"{HANDLE_VERSION}. Upgrade dagster_llmbatch where it is read; the batch itself is not affected."
            )
        return cls(str(stored["provider"]), str(stored["batch_id"]), dict(stored.get("refs") or {}))
