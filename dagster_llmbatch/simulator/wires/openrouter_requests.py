"""OpenRouter's requests: what it refuses, and the endpoints of others as it passes them on."""

import re
from typing import Any

from dagster_llmbatch.simulator.execution import UNKNOWN_MODEL, Body, Format, Refusal, Said
from dagster_llmbatch.simulator.wires.anthropic import Messages
from dagster_llmbatch.simulator.wires.openai_replies import CHAT, RESPONSES, Chat, Responses

SUFFIX = ":batch"
MOST_REQUESTS = 5_000
SERVED_BY = "DeepInfra"
INPUT_PRICE, OUTPUT_PRICE = 0.000001, 0.000005
"""USD a token; a batch costs half."""
ANTHROPIC_ID = r"[A-Za-z0-9_.-]{1,64}"
NO_CODE = "none"
"""Marks a refusal whose body has no code."""


class Routed(Format):
    """Another provider's endpoint, as OpenRouter passes it on."""

    def __init__(self, inner: Format) -> None:
        self._inner = inner
        self.leaves_out = inner.leaves_out

    def prompt_of(self, body: Body) -> str:
        """The endpoint's."""
        return self._inner.prompt_of(body)

    def schema_of(self, body: Body, *, in_batch: bool) -> "Body | None":
        """The endpoint's."""
        return self._inner.schema_of(body, in_batch=in_batch)

    def refused(self, body: Body, *, in_batch: bool) -> "Refusal | None":
        """The endpoint's rules, and a model nobody serves."""
        model = str(body.get("model"))
        if _is_unknown(model) or (model.endswith(SUFFIX) and not in_batch):
            return Refusal(404, f"No endpoints found for {model}.")
        return self._inner.refused(body, in_batch=in_batch)

    def reply(self, body: Body, said: Said) -> "dict[str, Any]":
        """The endpoint's reply, with who served it; with its cost, when alone."""
        made = self._inner.reply(body, said)
        made["provider"] = SERVED_BY
        made["id"] = f"gen-{said.created}-{said.name}"
        if said.in_batch:
            made["model"] = body["model"]
        else:
            made["usage"] |= {"cost": cost_of(said.tokens), "is_byok": False}
        for choice in made.get("choices", ()):
            choice["native_finish_reason"] = choice["finish_reason"]
            choice["message"]["reasoning"] = None
        return made


FORMS: "dict[str, Format]" = {CHAT: Routed(Chat()), RESPONSES: Routed(Responses()), "/v1/messages": Routed(Messages())}


def cost_of(tokens: "tuple[int, int]") -> float:
    """USD of a realtime call."""
    return tokens[0] * INPUT_PRICE + tokens[1] * OUTPUT_PRICE


def _is_unknown(model: str) -> bool:
    return model.split("/")[-1].startswith(UNKNOWN_MODEL)


def wrong_create(body: Any) -> "Refusal | None":
    """Why a create call is refused, or None."""
    if not isinstance(body, dict):
        return Refusal(400, "The request body is not valid JSON.")
    if not isinstance(body.get("requests"), list) or list(body)[-1] != "requests":
        return Refusal(400, "'endpoint' and 'model' must come before 'requests', which must be last.")
    if body.get("endpoint") not in FORMS:
        return Refusal(400, "Invalid endpoint.")
    model = body.get("model")
    if not isinstance(model, str):
        return Refusal(400, "model is required.")
    if not model.endswith(SUFFIX) or _is_unknown(model):
        return Refusal(400, f"Model '{model}' does not have a :batch endpoint.", code=NO_CODE)
    if body.get("completion_window", "24h") != "24h":
        return Refusal(400, "Invalid completion_window.")
    requests = body["requests"]
    if not 1 <= len(requests) <= MOST_REQUESTS:
        return Refusal(400, f"requests: from 1 to {MOST_REQUESTS}.")
    for one in requests:
        if (
            not isinstance(one, dict)
            or not isinstance(one.get("custom_id"), str)
            or not isinstance(one.get("body"), dict)
        ):
            return Refusal(400, "A request is an object with custom_id and body.")
        if model.startswith("anthropic/") and not re.fullmatch(ANTHROPIC_ID, one["custom_id"]):
            return Refusal(422, "Invalid custom_id.")
    return None


def wrong_request(body: Body, model: str) -> "str | None":
    """What fails the whole batch, or None."""
    if body["model"] != model:
        return "model differs from the batch's"
    if body.get("stream"):
        return "stream is not supported"
    most = body.get("max_tokens", 1)
    return None if isinstance(most, int) and most >= 1 else "max_tokens is at least 1"
