"""What each provider allows, as dated data in one place."""

from dagster_llmbatch.providers.content import PartKind
from dagster_llmbatch.providers.contract import Limits

LIMITS = {
    "openai": Limits(
        max_requests=50_000,
        # a batch waits for room for all its tokens in the queue of its model, which is 5 million on the first tier; 2,000
        # batches may be made in an hour
        usual_requests=5_000,
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
        # at the end of the window a batch may have no results at all, though some of it ran: a small one loses little
        usual_requests=500,
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
    "anthropic": Limits(
        max_requests=100_000,
        # the whole batch is one request body: one that is lost on the way, or has to be proven ours, is not everything
        usual_requests=5_000,
        # 256 MB are said, 10^6 or 2^20 is not; below both, and without the envelope around the lines
        max_bytes=250_000_000 - len('{"requests":[]}'),
        window=86_400.0,
        cancel_settle=450.0,
        # 29 days from creation, and a batch may run for one of them
        retention=28 * 86_400.0,
        # unknown; a batch bought twice costs more than this wait
        appears_within=300.0,
        batch_parts=frozenset(PartKind),
        realtime_parts=frozenset(PartKind),
        as_of="2026-11-30",
        source="https://platform.claude.com/docs/en/build-with-claude/batch-processing",
    ),
    "gemini": Limits(
        # no count is published: as many as elsewhere
        max_requests=50_000,
        # a batch that expires has no results, which asks for small ones; 100 may be out at a time, which asks for large ones
        usual_requests=5_000,
        # a file may have 2 GB, in whichever of its meanings
        max_bytes=1_900_000_000,
        # 24 h are the target; a batch expires after 48 h
        window=2 * 86_400.0,
        cancel_settle=60.0,
        retention=42 * 86_400.0,
        as_of="2026-11-30",
        source="https://ai.google.dev/gemini-api/docs/batch-api",
        # https://ai.google.dev/gemini-api/docs/file-input-methods: addresses are taken in batches as well
        batch_parts=frozenset(PartKind),
        realtime_parts=frozenset(PartKind),
    ),
}
"""By provider, with what we put in one batch where the user does not say. 200 MB is read as 200 million bytes, the smaller of
its two meanings; OpenRouter counts the body, in which the requests stand in a frame of our own."""
