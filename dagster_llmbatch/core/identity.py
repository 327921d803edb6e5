"""The names that keep us from paying twice: fingerprints of rows, custom ids of requests, external keys of batches.

All are digests over content, the same in every process and on every machine.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

FINGERPRINT_BYTES = 16
"""128 bits: two different requests of one table never meet."""


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no spaces: equal values give equal bytes. Raises TypeError for what is not JSON."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(*parts: "bytes | str") -> str:
    """SHA-256 in hex over the parts, each preceded by its length so that no two splits collide."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(b"%d:" % len(data))
        found.update(data)
    return found.hexdigest()


class Fingerprints:
    """Fingerprints of the rows of one group: what was asked, not where it stands.

    Model, system prompt, parameters (but the output cap) and output schema are in `identity`, made by the
    provider's encoder; the rendered prompt is the rest.
    """

    def __init__(self, identity: bytes) -> None:
        self._base = hashlib.blake2b(hashlib.sha256(identity).digest(), digest_size=FINGERPRINT_BYTES)

    def of(self, prompt: str) -> str:
        """32 hex digits for one rendered prompt."""
        found = self._base.copy()
        found.update(prompt.encode())
        return found.hexdigest()

    def of_parts(self, parts: str) -> str:
        """32 hex digits for content parts, given as JSON; never those of the same JSON as a text prompt."""
        return self.of(f"\0parts{parts}")


class CustomIds:
    """Custom ids of the requests of one namespace: 64 characters at most of `[A-Za-z0-9_-]`.

    A new attempt has a new one, so that a late answer never passes for a newer one; an edited row has another
    fingerprint, so that it never takes the old row's answer.
    """

    def __init__(self, namespace: str) -> None:
        self._base = hashlib.blake2b(digest(namespace).encode(), digest_size=FINGERPRINT_BYTES)

    def of(self, row_id: str, fingerprint: str, attempt: int) -> str:
        """The custom id of one attempt (1, 2, ...) at one row."""
        found = self._base.copy()
        found.update(f"{fingerprint}\0{row_id}".encode())
        return f"r-{found.hexdigest()}-{attempt}"


def external_key(
    *, namespace: str, asset_key: str, partition_key: str, generation: int, wave: int, custom_ids: Iterable[str]
) -> str:
    """The name under which a batch is searched at the provider. Stable over retries of the same chunk."""
    content = hashlib.sha256("".join(f"{custom_id}\n" for custom_id in custom_ids).encode()).digest()
    return "llmb-" + digest(namespace, asset_key, partition_key, str(generation), str(wave), content)[:40]
