"""What each provider allows, as dated data in one place."""

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
    ),
}
"""By provider. OpenAI's 200 MB is read as 200 million bytes, the smaller of its two meanings."""
