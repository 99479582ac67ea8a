"""Field types of the search-space YAML: what is written is normalised here, before the strict models see it.

Every function raises ``ValueError`` with the words the user reads; the loader adds file, line and key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SECRET_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
SECRET_NAME = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY)($|_)", re.IGNORECASE)
MAX_AXIS = 1024  # values on one axis; SGLang's tree kernel stops at 1,024 draft tokens

# Other spellings SGLang accepts for the flags we must recognise -> the name used in the YAML and on the command line.
FLAG_ALIASES = {
    "tp": "tp-size",
    "tensor-parallel-size": "tp-size",
    "pp": "pp-size",
    "pipeline-parallel-size": "pp-size",
    "dp": "dp-size",
    "data-parallel-size": "dp-size",
    "model": "model-path",
    "speculative-draft-model": "speculative-draft-model-path",
}

# Flags that have a place of their own in the YAML, or that only the tool may set -> where they belong.
OWNED_FLAGS = {
    "model-path": "it stands in model.path",
    "revision": "it stands in model.revision",
    "trust-remote-code": "it stands in model.trust_remote_code",
    "speculative-algorithm": "it is the axis space.algorithm",
    "speculative-draft-model-path": "it is the axis space.draft_model",
    "speculative-draft-model-revision": "it stands in space.draft_model[].revision",
    "speculative-num-steps": "it is the axis space.num_steps",
    "speculative-eagle-topk": "it is the axis space.topk",
    "speculative-num-draft-tokens": "it is the axis space.num_draft_tokens",
    "disable-cuda-graph": "it is the axis space.cuda_graph",
    "disable-decode-cuda-graph": "it is the axis space.cuda_graph",
    "cuda-graph-backend-decode": "it is the axis space.cuda_graph",
    "host": "a server is bound to loopback on its host; the addresses of hosts stand in hosts",
    "port": "a free port is chosen for every launch",
    "config": "the tool writes that file itself",
    "api-key": "the tool makes a key for every launch",
    "admin-api-key": "the tool makes a key for every launch",
    "node-rank": "an arm runs on one host; several nodes are not supported",
    "dist-init-addr": "an arm runs on one host; several nodes are not supported",
}

# What other tools call containers, at the top or at a host (where `container` is right).
CONTAINER_WORDS = ("runtime", "docker", "image", "docker_image", "container")


class Part(BaseModel):
    """Base of all parts: immutable, strict types, no unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", hide_input_in_errors=True)


class AtKey(ValueError):
    """A problem with one key of a mapping that is checked as a whole."""

    def __init__(self, key: object, words: str) -> None:
        super().__init__(words)
        self.key = str(key)


def doc(words: str, default: Any, *, unit: str = "", example: Any = None) -> Any:
    """A key with its default and what the reference says of it: meaning, unit, and an example where the shipped
    ``eagle3.yaml`` has none."""
    shown = {name: value for name, value in (("unit", unit), ("example", example)) if value not in ("", None)}
    return Field(default=default, description=words, json_schema_extra=shown or None)


def freeze(value: Any) -> Any:
    """Lists become tuples, all the way down: the strict models hold nothing that can be changed."""
    if isinstance(value, Mapping):
        return {key: freeze(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(freeze(item) for item in value)
    return value


def flag_name(name: str) -> str:
    """A server flag as the YAML spells it: no leading dashes, dashes for underscores, SGLang's main name."""
    plain = name.lstrip("-").replace("_", "-")
    return FLAG_ALIASES.get(plain, plain)


def flags(value: Any) -> Any:
    """Normalise the names of a mapping of server flags; refuse those that have a place of their own."""
    if not isinstance(value, Mapping):
        return value
    out: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise AtKey(key, f"a flag's name is text, not {key!r}")
        name = flag_name(key)
        if name in OWNED_FLAGS:
            raise AtKey(key, f"--{name} cannot be set here: {OWNED_FLAGS[name]}")
        if name in out:
            raise AtKey(key, f"--{name} is given twice (as {key!r} and under another spelling)")
        if name == "nnodes" and item != 1:
            raise AtKey(key, "nnodes must be 1: an arm runs on one host, several nodes are not supported")
        if isinstance(item, str) and SECRET_REFERENCE.search(item):
            raise AtKey(
                key, f"--{name}: ${{...}} is taken from the environment in server.env only; arguments are visible"
            )
        out[name] = item
    return out


def axis(value: Any) -> Any:
    """``[1, 2]`` stays; ``{low, high, step}`` becomes its list, high included; a single value a list of one."""
    if isinstance(value, Mapping):
        unknown = sorted(set(value) - {"low", "high", "step"})
        if unknown:
            raise ValueError(f"unknown key {unknown[0]!r} in a range; it has low, high and step")
        bounds = [value.get("low"), value.get("high"), value.get("step", 1)]
        if any(isinstance(bound, bool) or not isinstance(bound, int) for bound in bounds):
            raise ValueError("a range is {low: INTEGER, high: INTEGER, step: INTEGER}")
        low, high, step = bounds
        if step < 1 or high < low:
            raise ValueError(f"the range {low}..{high} by {step} is empty")
        if (high - low) // step >= MAX_AXIS:
            raise ValueError(f"an axis has at most {MAX_AXIS} values")
        return tuple(range(low, high + 1, step))
    if isinstance(value, (str, int, float, bool)):
        return (value,)
    if isinstance(value, tuple):
        if not value:
            raise ValueError("the axis is empty; give at least one value or leave the key out")
        if len(value) > MAX_AXIS:
            raise ValueError(f"an axis has at most {MAX_AXIS} values")
        seen: list[Any] = []
        for item in value:
            # 1 == True in Python; the type is part of the value here
            if any(item == other and type(item) is type(other) for other in seen):
                raise ValueError(f"the value {item!r} is given twice")
            seen.append(item)
    return value


def one_or_many(value: Any) -> Any:
    """A single value where a list is meant becomes a list of one."""
    return (value,) if isinstance(value, (str, int, float)) else value


def environment(value: Any) -> Any:
    """Environment variables: text, whole numbers become text; secrets only as ``${NAME}``."""
    if not isinstance(value, Mapping):
        return value
    out: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            raise AtKey(key, f"{key!r} is no name of an environment variable")
        if isinstance(item, bool):
            raise AtKey(key, f'is a YAML boolean where text is meant; write "{str(item).lower()}" or "1"')
        text = str(item) if isinstance(item, int) else item
        if isinstance(text, str):
            if "${" in text and not SECRET_REFERENCE.fullmatch(text):
                raise AtKey(key, "a reference to the environment is the whole value, ${NAME}")
            if SECRET_NAME.search(key) and not SECRET_REFERENCE.fullmatch(text):
                raise AtKey(key, f"looks like a secret, and what stands here is stored; write ${{{key}}} instead")
        out[key] = text
    return out


def _each(value: Any, read: Callable[[Any], Any]) -> Any:
    """``read`` of every item; one that stands alone is a list of one."""
    items = (value,) if isinstance(value, (str, Mapping)) else value
    return tuple(map(read, items)) if isinstance(items, tuple) else value


def drafters(value: Any) -> Any:
    """A plain string is a path whose last part is the name."""

    def read(item: Any) -> Any:
        if isinstance(item, str):
            item = {"path": item}
        if isinstance(item, Mapping) and isinstance(item.get("path"), str) and "name" not in item:
            return {"name": item["path"].rstrip("/").rsplit("/", 1)[-1], **item}
        return item

    return _each(value, read)


def gpus(value: Any) -> Any:
    """``8`` is the first eight GPUs, ``[0, 3]`` those two."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= 64:
            raise ValueError("a host has 1 to 64 GPUs")
        return tuple(range(value))
    if isinstance(value, tuple):
        if not value:
            raise ValueError("the list of GPUs is empty")
        if len(set(value)) != len(value):
            raise ValueError("a GPU is given twice")
    return value


def container(value: Any) -> Any:
    """``IMAGE`` is short for ``{image: IMAGE}``."""
    return {"image": value} if isinstance(value, str) else value


def meant_container(word: str) -> str:
    """What to write instead, for a word that other tools use for containers: there is one spelling of it here."""
    if word not in CONTAINER_WORDS:
        return ""
    return (
        "; to run servers in docker, write `container: IMAGE`, or `container: {image: IMAGE, args: [...]}`, at the "
        "host under hosts"
    )


def objectives(value: Any) -> Any:
    """``output_throughput@32`` is short for ``{metric: output_throughput, concurrency: 32}``."""

    def read(item: Any) -> Any:
        if not isinstance(item, str):
            return item
        metric, at, level = item.partition("@")
        if at and not level.strip().isdigit():
            raise ValueError(f"{item!r}: write metric@concurrency, for example output_throughput@32")
        return {"metric": metric.strip()} | ({"concurrency": int(level)} if at else {})

    return _each(value, read)


def clock(value: Any) -> Any:
    """A time of day ``07:00`` (the next one, local time)."""
    if isinstance(value, str) and not re.fullmatch(r"([01]?\d|2[0-3]):[0-5]\d", value):
        raise ValueError(f"{value!r} is no time of day; write it as 07:00")
    return value


Name = Annotated[str, Field(pattern=rf"^{NAME_PATTERN.pattern}$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]
