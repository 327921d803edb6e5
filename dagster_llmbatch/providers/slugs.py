"""A model's name at its vendor and at OpenRouter, both ways. Guesses nothing: None where the rule does not hold."""

import re

VENDORS = {"openai": "openai", "anthropic": "anthropic", "gemini": "google"}
"""Our provider to OpenRouter's vendor."""
_SOLD_BY_BOTH = {
    "openai": re.compile(r"(gpt-\d|o\d|chatgpt-)[a-z0-9.-]*"),  # not the open weights (gpt-oss): OpenAI serves none
    "anthropic": re.compile(r"claude-[a-z0-9.-]+"),
    "gemini": re.compile(r"gemini-[a-z0-9.-]+"),  # not gemma
}
"""Model ids that a vendor and OpenRouter write alike, but for what the functions below change."""
_DATE = re.compile(r"-(20\d{2}-\d{2}-\d{2}|20\d{6})$")
_VERSION = re.compile(r"(?<=\d)-(?=\d)")
_CLAUDE = re.compile(r"claude-[a-z]+-\d+(\.\d+)?")
"""Claude slugs from which the native name follows. The third generation is written otherwise and has no undated names; a
further word, such as "-fast", is a setting at Anthropic and not a model."""
BATCH_VARIANT = "batch"


def split_variant(slug: str) -> "tuple[str, str]":
    """("openai/gpt-5-mini", "batch") of "openai/gpt-5-mini:batch"; the variant is empty where there is none."""
    base, _, variant = slug.partition(":")
    return base, variant


def is_dated(model: str) -> bool:
    """Whether the model id ends with the date of a snapshot."""
    return _DATE.search(model) is not None


def to_openrouter(provider: str, model: str) -> "str | None":
    """OpenRouter's slug of a vendor's model, without the date of a snapshot; None where OpenRouter sells no such model."""
    if provider == "gemini":
        model = model.removeprefix("models/")
    if provider not in VENDORS or not _SOLD_BY_BOTH[provider].fullmatch(model):
        return None
    name = _DATE.sub("", model)
    if provider == "anthropic":
        name = _VERSION.sub(".", name.removesuffix("-latest")).removesuffix(".0")
    return f"{VENDORS[provider]}/{name}"


def from_openrouter(slug: str) -> "tuple[str, str] | None":
    """("anthropic", "claude-haiku-4-5") of "anthropic/claude-haiku-4.5"; None where no vendor of ours sells the model.

    ":batch" is dropped, it is how OpenRouter sells batches. Other variants are OpenRouter's alone: no vendor has ":free".
    """
    base, variant = split_variant(slug)
    vendor, _, name = base.partition("/")
    provider = next((ours for ours, theirs in VENDORS.items() if theirs == vendor), None)
    if provider is None or variant not in ("", BATCH_VARIANT) or not _SOLD_BY_BOTH[provider].fullmatch(name):
        return None
    if provider != "anthropic":
        return provider, name
    if not _CLAUDE.fullmatch(name):
        return None
    return provider, f"{name}-0" if name.endswith("-4") else name.replace(".", "-")
