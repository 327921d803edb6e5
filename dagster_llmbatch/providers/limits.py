"""What each provider allows, as dated data in one place."""

from dagster_llmbatch.providers.content import PartKind
from dagster_llmbatch.providers.contract import Limits

LIMITS = {
    "openai": Limits(
        max_requests=50_000,
        max_bytes=200_000_000,
        window=86_400.0,
        cancel_settle=660.0,
        retention=30 * 86_400.0,
        as_of="2026-11-30",
        source="https://platform.openai.com/docs/guides/batch",
        batch_parts=frozenset(PartKind),
        realtime_parts=frozenset(PartKind),
    ),
    "openrouter": Limits(
        max_requests=5_000,
        max_bytes=199_900_000,
        window=86_400.0,
        cancel_settle=0.0,
        retention=30 * 86_400.0,
        as_of="2026-11-30",
        source="https://openrouter.ai/docs/batch-quickstart",
        appears_within=300.0,
        can_cancel=False,
        realtime_parts=frozenset(PartKind),
    ),
}
"""By provider. 200 MB is read as 200 million bytes, the smaller of its two meanings; OpenRouter counts the body, in which the
requests stand in a frame of our own."""
