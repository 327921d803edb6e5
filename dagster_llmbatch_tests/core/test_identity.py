"""Fingerprints, custom ids and external keys: legal, distinct, and the same in every process."""

import os
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_llmbatch.core.identity import CustomIds, Fingerprints, canonical_json, digest, external_key
from dagster_llmbatch.providers.contract import RequestTemplate
from dagster_llmbatch.providers.openai import CHAT, RESPONSES, OpenAIEncoder

LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")
HOSTILE = ["a" * 65, "a" * 64 + "b", "a" * 64 + "c", "2024-01-01|de/x", "größe 1", "", " ", "😀", "a\nb", "r-0-1"]
KEY: "dict[str, Any]" = {
    "namespace": "prod",
    "asset_key": "shop/reviews",
    "partition_key": "2024-01-01",
    "generation": 1,
    "wave": 1,
    "custom_ids": ("r-1-1", "r-2-1"),
}


@settings(max_examples=100)
@given(st.text(), st.text(), st.text(alphabet="0123456789abcdef", min_size=32, max_size=32), st.integers(1, 10**9))
def test_custom_ids_are_legal_everywhere(namespace: str, row_id: str, fingerprint: str, attempt: int) -> None:
    """Whatever the namespace and the row's id, at most 64 of [A-Za-z0-9_-]."""
    assert LEGAL.fullmatch(CustomIds(namespace).of(row_id, fingerprint, attempt))


def test_custom_ids_differ_where_anything_differs() -> None:
    """Another namespace, row, fingerprint or attempt is another id; ids equal in 64 characters too."""
    prints = [Fingerprints(b"t").of(prompt) for prompt in ("a", "b")]
    made = [
        CustomIds(space).of(row, fingerprint, attempt)
        for space in ("", "prod", "staging")
        for row in HOSTILE
        for fingerprint in prints
        for attempt in (1, 2, 11)
    ]
    assert len(set(made)) == len(made)


def test_an_id_is_the_same_each_time() -> None:
    """Making ids in between changes none."""
    ids = CustomIds("n")
    first = ids.of("1", "f", 1)
    ids.of("2", "f", 1)
    assert ids.of("1", "f", 1) == first == CustomIds("n").of("1", "f", 1)


def test_fingerprints_follow_prompt_and_template() -> None:
    """32 hex digits, distinct for each prompt and each template."""
    one, other = Fingerprints(b"one"), Fingerprints(b"other")
    found = {one.of("a"), one.of("b"), one.of(""), other.of("a"), other.of("")}
    assert len(found) == 5
    assert all(re.fullmatch(r"[0-9a-f]{32}", fingerprint) for fingerprint in found)
    assert one.of("a") in found


BASE = RequestTemplate("m", system="s", params={"temperature": 0, "top_p": 1}, schema={"type": "object"})


@pytest.mark.parametrize(
    "other",
    [
        RequestTemplate("m2", system="s", params=BASE.params, schema=BASE.schema),
        RequestTemplate("m", system="t", params=BASE.params, schema=BASE.schema),
        RequestTemplate("m", system=None, params=BASE.params, schema=BASE.schema),
        RequestTemplate("m", system="s", params={"temperature": 1, "top_p": 1}, schema=BASE.schema),
        RequestTemplate("m", system="s", params=BASE.params, schema={"type": "array"}),
        RequestTemplate("m", system="s", params=BASE.params),
    ],
    ids=["model", "system", "no system", "params", "schema", "no schema"],
)
def test_what_changes_the_answer_changes_the_fingerprint(other: RequestTemplate) -> None:
    """Model, system prompt, parameters and schema are part of a row's fingerprint."""
    identities = [OpenAIEncoder(template, RESPONSES).identity for template in (BASE, other)]
    assert identities[0] != identities[1]


@pytest.mark.parametrize("cap", ["max_output_tokens", "max_tokens", "max_completion_tokens"])
def test_the_output_cap_changes_no_fingerprint(cap: str) -> None:
    """Raising the cap buys no answer again, nor does another order of the parameters."""
    capped = RequestTemplate("m", system="s", params={"top_p": 1, cap: 9, "temperature": 0}, schema=BASE.schema)
    for endpoint in (RESPONSES, CHAT):
        assert OpenAIEncoder(capped, endpoint).identity == OpenAIEncoder(BASE, endpoint).identity


@pytest.mark.parametrize(
    "change",
    [
        {"namespace": "staging"},
        {"asset_key": "shop/other"},
        {"partition_key": ""},
        {"generation": 2},
        {"wave": 2},
        {"custom_ids": ("r-1-1",)},
        {"custom_ids": ("r-2-1", "r-1-1")},
    ],
    ids=str,
)
def test_external_keys_follow_their_parts(change: "dict[str, Any]") -> None:
    """Each part makes another key; equal parts the same one; short enough for metadata and file names."""
    key = external_key(**KEY)
    assert key == external_key(**KEY)
    assert key != external_key(**{**KEY, **change})
    assert re.fullmatch(r"llmb-[0-9a-f]{40}", key)


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.text(max_size=5), max_size=4))
def test_digests_do_not_confuse_splits(one: "list[str]", other: "list[str]") -> None:
    """Two lists of parts have one digest only where they are equal."""
    assert (digest(*one) == digest(*other)) == (one == other)


def test_canonical_json_is_one_form() -> None:
    """Order of keys does not matter; what is not JSON is refused."""
    assert canonical_json({"b": 1, "a": "ü"}) == canonical_json({"a": "ü", "b": 1}) == '{"a":"ü","b":1}'.encode()
    with pytest.raises(ValueError):
        canonical_json({"a": float("nan")})
    with pytest.raises(TypeError):
        canonical_json({"a": {1, 2}})


PROGRAM = """
from dagster_llmbatch.core.identity import CustomIds, Fingerprints, external_key
from dagster_llmbatch.providers.contract import RequestTemplate
from dagster_llmbatch.providers.openai import RESPONSES, OpenAIEncoder
schema = {"type": "object", "properties": {"b": {}, "a": {}}}
encoder = OpenAIEncoder(RequestTemplate("m", system="s", params={"z": 1, "a": {"y": 1, "b": 2}}, schema=schema), RESPONSES)
fingerprint = Fingerprints(encoder.identity).of("prompt")
custom_id = CustomIds("prod").of("größe 1", fingerprint, 2)
names = {"namespace": "prod", "asset_key": "a", "partition_key": "p", "generation": 3, "wave": 1}
found = "|".join([fingerprint, custom_id, external_key(**names, custom_ids=[custom_id])])
"""


def test_all_names_are_the_same_in_another_process() -> None:
    """A process with another hash seed makes the same fingerprint, custom id and external key."""
    here: dict[str, str] = {}
    exec(PROGRAM, here)
    environment = {**os.environ, "PYTHONHASHSEED": "4242"}
    command = [sys.executable, "-c", PROGRAM + "import sys; sys.stdout.write(found)"]
    there = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout
    assert there == here["found"]
