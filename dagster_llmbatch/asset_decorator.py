"""`@llm_batch_asset` and `build_llm_batch_asset`: a function that returns rows, or an upstream asset, into an LLM asset."""

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import dagster as dg
import pyarrow as pa
from pydantic import BaseModel

from dagster_llmbatch import metadata
from dagster_llmbatch.core.by_row import ByRow, check_by_row
from dagster_llmbatch.core.prompt import check_template
from dagster_llmbatch.core.recipe import Recipe
from dagster_llmbatch.core.results import system_fields
from dagster_llmbatch.core.row_ids import IdColumn, check_id_column
from dagster_llmbatch.dagster_internals import resource_parameters
from dagster_llmbatch.errors import ConfigurationError, UnportableSchemaError
from dagster_llmbatch.io_manager import ParquetIOManager
from dagster_llmbatch.partition_run import LLMBatchAsset, Wait, run_partition
from dagster_llmbatch.provider_config import is_alias
from dagster_llmbatch.providers.contract import EXTRAS
from dagster_llmbatch.providers.registry import parse_model
from dagster_llmbatch.resource import BatchOptions, check_options
from dagster_llmbatch.schemas.output import OutputSchema

IO_MANAGER_KEY = "llm_batch_parquet_io_manager"
"""Where an asset without an `io_manager_key` finds its IO manager; the asset brings it along."""
DEFAULT_IO_MANAGER = ParquetIOManager()
WARN_ABOVE, FAIL_ABOVE = "llmbatch/warn_above", "llmbatch/fail_above"
RESOURCE_KEY = "llm_batch"

Policy = Literal["auto", "batch"]


def llm_batch_asset(
    asset: "dg.AssetSpec | dg.AssetKey | str | Sequence[str] | None" = None,
    *,
    model: str,
    prompt: "str | Callable[..., Any]",
    output: "type[BaseModel] | Mapping[str, Any] | None" = None,
    system: "str | None" = None,
    params: "Mapping[str, Any] | None" = None,
    id_column: "IdColumn | None" = None,
    keep_columns: "Sequence[str] | None" = None,
    row_model: "ByRow | None" = None,
    row_system: "ByRow | None" = None,
    row_params: "ByRow | None" = None,
    extras: "Sequence[str]" = (),
    batch_provider: "str | None" = None,
    batch_options: "BatchOptions | None" = None,
    policy: Policy = "auto",
    batch_above: int = 20,
    wait: Wait = "suspend",
    warn_above: float = 0.05,
    fail_above: float = 0.5,
    resource_key: str = RESOURCE_KEY,
    ins: "Mapping[str, dg.AssetIn] | None" = None,
    deps: "Iterable[Any] | None" = None,
    partitions_def: "dg.PartitionsDefinition | None" = None,
    io_manager_key: "str | None" = None,
    group_name: "str | None" = None,
    owners: "Sequence[str] | None" = None,
    tags: "Mapping[str, str] | None" = None,
    kinds: "set[str] | None" = None,
    description: "str | None" = None,
    automation_condition: "dg.AutomationCondition | None" = None,
    code_version: "str | None" = None,
    pool: "str | None" = None,
    op_tags: "Mapping[str, Any] | None" = None,
    retry_policy: "dg.RetryPolicy | None" = None,
    hooks: "set[dg.HookDefinition] | None" = None,
    **spec_fields: Any,
) -> "Callable[[Callable[..., Any]], dg.AssetsDefinition]":
    """Make an asset of LLM answers from a function that returns the rows.

    The function takes upstream assets, resources and config the Dagster way, and returns anything that speaks Arrow (or
    a path to Parquet). Each row becomes one prompt and one row of the result.

    Args:
        asset: asset key or AssetSpec; the function's name where it is left out.
        model: "provider:model"; everything after the first colon is the provider's model id. Or a name in the resource's
            `models`, which is looked up, and the output type held against its provider, when a run begins.
        prompt: a Jinja2 template over the row's columns (sandboxed; an undefined name is an error), or a function of the
            row as a dict that returns text, or content parts: TextPart, ImagePart, DocumentPart, or a list of them. The
            row's number from 0 in the partition's input is `row_index` in a template that has no such column, and a
            second argument of a function that takes two. With it in the prompt, rows that move are bought again.
        output: a pydantic model, a JSON Schema, or None for plain text (column `text`).
        system: system prompt, the same for each row.
        params: passed through to the provider, such as temperature or max_output_tokens.
        id_column: an integer or text column that names each row, or a function of the row that makes such a name; None:
            the row number, with a warning.
        keep_columns: input columns carried into the result; None: all.
        row_model, row_system, row_params: the name of a column, or a function of the row, that gives a row a model of the
            same provider (as `model`), a system prompt or params of its own; null: the asset's. Params come over the
            asset's one by one. Rows are grouped into batches as the provider needs.
        extras: further fields of the reply as columns: reasoning, tool_calls, logprobs, grounding, response (the whole
            reply); each becomes `llm_` and its name, mostly JSON text.
        batch_provider: the provider whose batch API is used, such as "openrouter"; None: the model's vendor where it is
            configured, else OpenRouter, which is said in the run's log and metadata.
        batch_options: what of the resource is different for this asset: max_requests_per_batch, max_attempts,
            poll_interval, poll_backoff, poll_interval_max, on_reclaim.
        policy: "batch" or "auto". Until the realtime lane exists, both mean batch, and the metadata says so.
        batch_above: rows from which "auto" takes the batch.
        wait: "suspend" lets the run end while the provider works; "block" waits in the run.
        warn_above, fail_above: share of rows without a valid answer at which the check warns, or fails and blocks.
        resource_key: where the LLMBatchResource is.
        io_manager_key: hands the results to another IO manager, as a pyarrow Table; None: Parquet, streamed.
        code_version: None: derived from model, prompt, system, params and output.
        metadata, and further fields of AssetSpec: as Dagster's.

    Raises:
        ConfigurationError: for a model string, template, params or output type that cannot work, at definition time.
    """

    def decorate(function: "Callable[..., Any]") -> dg.AssetsDefinition:
        spec = _spec(function.__name__ if asset is None else asset)
        name = spec.key.to_user_string()
        if policy not in ("auto", "batch"):
            raise ConfigurationError(f'{name}: policy is "auto" or "batch", not {policy!r}.')
        if wait not in ("suspend", "block"):
            raise ConfigurationError(f'{name}: wait is "suspend" or "block", not {wait!r}.')
        if not 0 <= warn_above <= fail_above <= 1:
            raise ConfigurationError(f"{name}: 0 <= warn_above <= fail_above <= 1 must hold.")
        recipe = _recipe(
            name,
            model,
            output,
            prompt=prompt,
            system=system,
            params=dict(params or {}),
            id_column=check_id_column(id_column, asset=name),
            keep_columns=None if keep_columns is None else tuple(keep_columns),
            by_row=check_by_row(
                {"row_model": row_model, "row_system": row_system, "row_params": row_params}, asset=name
            ),
            extras=_extras(extras, name),
            batch_provider=batch_provider,
        )
        options = check_options(batch_options or {}, asset=name)
        described = LLMBatchAsset(
            spec.key, recipe, policy, batch_above, wait, streams=io_manager_key is None, batch_options=options
        )
        found_ins = _ins(function, ins or {}, resource_key)
        spec = spec.merge_attributes(
            deps=[*_deps(found_ins), *(deps or [])],
            metadata={
                **metadata.definition_metadata(model, policy),
                **_columns(recipe, spec),
                "llmbatch/batch_above": batch_above,
                WARN_ABOVE: warn_above,
                FAIL_ABOVE: fail_above,
                **(spec_fields.pop("metadata", None) or {}),
            },
            owners=list(owners or []),
            tags=dict(tags or {}),
            kinds={*_KINDS.get(recipe.provider or "", ()), "parquet"} if kinds is None else kinds,
        )
        changes: dict[str, Any] = {
            "group_name": group_name,
            "description": description or inspect.getdoc(function),
            "automation_condition": automation_condition,
            "partitions_def": partitions_def,
            **spec_fields,
        }
        spec = spec.replace_attributes(
            skippable=True,
            code_version=code_version or spec.code_version or recipe.code_version(),
            **{k: v for k, v in changes.items() if v is not None},
        ).with_io_manager_key(io_manager_key or IO_MANAGER_KEY)
        return _quiet_multi_asset(
            name=spec.key.to_python_identifier(),
            specs=[spec],
            # the dep carries the partition mapping: Dagster wants it in one place
            ins={name: given._replace(partition_mapping=None) for name, given in found_ins.items()},
            can_subset=True,
            backfill_policy=dg.BackfillPolicy.multi_run(1),
            # Dagster takes resources as arguments or as keys, not both; a resource brought along counts as a key
            required_resource_keys={resource_key, *resource_parameters(function)},
            resource_defs={} if io_manager_key else {IO_MANAGER_KEY: DEFAULT_IO_MANAGER},
            pool=pool,
            op_tags=op_tags,
            retry_policy=retry_policy,
            hooks=hooks,
        )(_body(function, described, resource_key))

    return decorate


def build_llm_batch_asset(
    asset: "dg.AssetSpec | dg.AssetKey | str | Sequence[str]",
    *,
    input: "dg.AssetsDefinition | dg.AssetSpec | dg.AssetKey | dg.AssetIn | str | Sequence[str]",  # noqa: A002
    **options: Any,
) -> dg.AssetsDefinition:
    """`llm_batch_asset` over an upstream asset as it is.

    Args:
        asset: asset key or AssetSpec.
        input: the upstream asset, loaded through its own IO manager; an AssetIn adds a partition mapping.
        options: as of `llm_batch_asset`.
    """

    def rows(rows: Any) -> Any:
        return rows

    rows.__doc__ = None
    upstream = input if isinstance(input, dg.AssetIn) else dg.AssetIn(key=_upstream_key(input))
    return llm_batch_asset(asset, ins={"rows": upstream}, **options)(rows)


def _quiet_multi_asset(**options: Any) -> "Callable[[Callable[..., Any]], dg.AssetsDefinition]":
    with warnings.catch_warnings():
        # bringing a resource along is beta in Dagster 1.13; our tests say when it changes
        warnings.simplefilter("ignore", dg.BetaWarning)
        return dg.multi_asset(**options)


_KINDS = {"openai": ("openai",), "anthropic": ("anthropic",), "gemini": ("gemini",), "openrouter": ("openrouter",)}


def _spec(asset: Any) -> dg.AssetSpec:
    return asset if isinstance(asset, dg.AssetSpec) else dg.AssetSpec(asset)


def _upstream_key(upstream: Any) -> dg.AssetKey:
    if isinstance(upstream, dg.AssetsDefinition | dg.AssetSpec):
        return upstream.key
    return dg.AssetKey.from_coercible(upstream)


def _recipe(name: str, model: str, output: Any, **asked: Any) -> Recipe:
    """The recipe, with everything refused that can never work."""
    provider, model_id = (None, model) if is_alias(model) else parse_model(model, asset=name)
    schema = OutputSchema.compile(output, asset=name)
    batches_at = asked["batch_provider"] or provider
    if batches_at is not None:  # else the plan asks, which knows what the resource calls by this name
        try:
            schema.for_provider(batches_at)
        except UnportableSchemaError as error:
            raise UnportableSchemaError(f"{name}: {error}", path=error.path, provider=error.provider) from None
    check_template(asked["prompt"], asset=name)
    return Recipe(asset=name, provider=provider, model=model_id, output=schema, **asked)


def _columns(recipe: Recipe, spec: dg.AssetSpec) -> "dict[str, Any]":
    """The Columns tab before the first materialization: the output's and the system columns. What is kept of the input is
    known only with the input; the materialization has all."""
    if "dagster/column_schema" in spec.metadata:
        return {}
    fields = [*recipe.output.arrow_schema, *system_fields(recipe.extras)]
    return {"dagster/column_schema": metadata.column_schema(pa.schema(fields))}


def _extras(extras: "Sequence[str]", name: str) -> "tuple[str, ...]":
    strange = sorted(set(extras) - set(EXTRAS))
    if strange:
        raise ConfigurationError(f"{name}: there are no extras {strange}; there are {list(EXTRAS)}.")
    return tuple(extra for extra in EXTRAS if extra in extras)


def _ins(function: "Callable[..., Any]", ins: "Mapping[str, dg.AssetIn]", resource_key: str) -> "dict[str, dg.AssetIn]":
    """An AssetIn for each parameter that is an upstream asset, as Dagster reads a function."""
    others = {"context", "config", resource_key, *resource_parameters(function)}
    found: dict[str, dg.AssetIn] = {}
    for name in inspect.signature(function).parameters:
        if name not in others:
            given = ins.get(name, dg.AssetIn())
            found[name] = given._replace(
                key=given.key or dg.AssetKey([*(given.key_prefix or []), name]), key_prefix=None
            )
    unknown = set(ins) - set(found)
    if unknown:
        raise ConfigurationError(f"{function.__name__}: ins names {sorted(unknown)}, which are no parameters of it.")
    return found


def _deps(ins: "Mapping[str, dg.AssetIn]") -> "list[dg.AssetDep]":
    return [dg.AssetDep(given.key, partition_mapping=given.partition_mapping) for given in ins.values() if given.key]


def _body(function: "Callable[..., Any]", asset: LLMBatchAsset, resource_key: str) -> "Callable[..., Any]":
    """The function Dagster runs: the user's parameters but resources, and the line in place of the body."""
    signature = inspect.signature(function)
    takes_context = "context" in signature.parameters
    resources = resource_parameters(function)
    if resource_key in signature.parameters:
        resources |= {resource_key}

    def body(context: dg.AssetExecutionContext, **given: Any) -> Any:
        def load_rows() -> Any:
            filled = given | {name: getattr(context.resources, name) for name in resources}
            return function(context, **filled) if takes_context else function(**filled)

        yield from run_partition(context, asset, getattr(context.resources, resource_key), load_rows)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("context", kind, annotation=dg.AssetExecutionContext)]
    parameters += [
        p.replace(kind=kind) for p in signature.parameters.values() if p.name != "context" and p.name not in resources
    ]
    body.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    body.__annotations__ = {p.name: p.annotation for p in parameters if p.annotation is not inspect.Parameter.empty}
    body.__name__ = function.__name__
    body.__doc__ = function.__doc__
    body.__module__ = function.__module__
    return body
