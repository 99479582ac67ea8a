"""What a server says it runs, against what it was asked to run. Asked is not effective: SGLang rewrites arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from launchers.engines.flags import FlagTable, table_for
from sweep.model import ArmConfig, Difference, Drafter, Effective, FlagValue, Scalar
from sweep.seams import HttpGet

# /server_info keys that must be equal on every arm of a comparison.
PIN_KEYS = (
    "attention_backend", "prefill_attention_backend", "decode_attention_backend", "sampling_backend", "page_size",
    "max_running_requests", "mem_fraction_static", "max_total_tokens", "chunked_prefill_size", "context_length",
    "tp_size", "dp_size", "pp_size", "ep_size", "dtype", "quantization", "kv_cache_dtype", "load_format",
    "disable_overlap_schedule", "disable_radix_cache", "enable_mixed_chunk", "disable_custom_all_reduce",
    "schedule_policy", "stream_interval", "decode_log_interval", "model_path", "revision",
)  # fmt: skip
# Read back and stored, but allowed to differ: a drafter's weights take memory, so a smaller pool is its own effect.
_SEEN_KEYS = ("max_total_num_tokens", "max_req_input_len", "speculative_adaptive", "random_seed")

# Known rewrites (SGLang 0.5.17 and 0.5.23, speculative_hook): rule name by (field, condition). See :func:`_rule`.
_CHAIN_ONLY = ("DFLASH", "DSPARK")
_ALIASES = {("NEXTN", "EAGLE"), ("EAGLE", "FROZEN_KV_MTP"), ("NEXTN", "FROZEN_KV_MTP")}


def read_server_info(http: HttpGet) -> dict[str, Any]:
    """``/server_info`` as a dict. RuntimeError, with the server's words, where it does not answer with one."""
    status, body = http("GET", "/server_info")
    if status == 404:
        status, body = http("GET", "/get_server_info")  # before /server_info had its name
    try:
        info = json.loads(body)
    except ValueError:
        info = None
    if status != 200 or not isinstance(info, dict):
        raise RuntimeError(f"/server_info answered {status}: {body[:200].decode('utf-8', 'replace')}")
    return info


def effective(
    info: Mapping[str, Any], arm: ArmConfig, drafters: Mapping[str, Drafter], server_args: Mapping[str, FlagValue]
) -> Effective:
    """The arm as it runs, with every difference to what was asked of it and of the pins (``server_args``). Pure.

    Only what the server says counts: a key it does not report becomes None and, where it was asked for, a difference
    without a rule (status ``mismatch``), never the asked value.
    """
    version = info.get("version")
    table, _ = table_for(version if isinstance(version, str) else "")
    live = _live(info)
    algorithm = _word(live.get("speculative_algorithm"))
    drafter = _drafter_name(live, arm, drafters) if algorithm else None
    speculative = algorithm is not None
    extra: list[tuple[str, Scalar]] = []
    differences: list[Difference] = []
    for name, asked in arm.extra:
        key = table.key(name)
        runs = live.get(key)
        if isinstance(runs, str | int | float | bool):
            extra.append((name, runs))
        if not _same(asked, runs):
            differences.append(
                Difference(name, asked, runs, "adaptive_refused" if _adaptive(key, asked, runs) else None)
            )
    config = ArmConfig(
        algorithm=algorithm,
        draft_model=drafter,
        num_steps=_number(live.get("speculative_num_steps")) if speculative else None,
        topk=_number(live.get("speculative_eagle_topk")) if speculative else None,
        num_draft_tokens=_number(live.get("speculative_num_draft_tokens")) if speculative else None,
        cuda_graph=graphs_on(live),
        extra=tuple(sorted(extra)),
    )
    for field in ("algorithm", "draft_model", "num_steps", "topk", "num_draft_tokens", "cuda_graph"):
        asked, runs = getattr(arm, field), getattr(config, field)
        if field == "algorithm" and isinstance(asked, str):
            asked = asked.upper()
        left_open = asked is None and arm.speculative and field != "algorithm"
        if field == "draft_model" and asked is None and runs == _OWN_LAYERS:
            continue
        if asked != runs and not (left_open and field != "draft_model"):
            differences.append(Difference(field, asked, runs, _rule(field, arm, config)))
    if drafter == _OWN_LAYERS:
        config = ArmConfig.from_dict({**config.as_dict(), "draft_model": None})
    pins = {key: live[key] for key in (*PIN_KEYS, *_SEEN_KEYS) if key in live}
    if (sizes := _graph_sizes(live)) is not None:
        pins["cuda_graph_bs_decode"] = sizes
    asked_pins = {name: value for name, value in server_args.items() if name not in dict(arm.extra)}
    differences += pin_differences(asked_pins, pins, table)
    return Effective(config, pins, tuple(differences), version if isinstance(version, str) else None)


_OWN_LAYERS = "(the target's own layers)"  # an MTP target drafts with layers of its own checkpoint


def pin_differences(
    server_args: Mapping[str, FlagValue], pins: Mapping[str, Any], table: FlagTable
) -> tuple[Difference, ...]:
    """Pins the server runs otherwise than given, of those it reports (``pins``: by key of ``/server_info``)."""
    out = []
    for name, asked in table.normalise(server_args).items():
        key = table.key(name)
        if asked is None or key not in PIN_KEYS or key not in pins:
            continue
        runs = pins[key]
        if not _same(asked, runs):
            out.append(Difference(name, asked, runs))
    return tuple(out)


def pin_conflicts(reference: Effective, candidate: Effective) -> tuple[Difference, ...]:
    """Why two arms may not be compared: pins that differ between them (asked: the reference's). Axis flags of either
    arm are meant to differ and are left out."""
    meant = {name.replace("-", "_") for name, _ in (*reference.config.extra, *candidate.config.extra)}
    if reference.config.cuda_graph != candidate.config.cuda_graph:
        meant.add("cuda_graph_bs_decode")
    keys = [key for key in (*PIN_KEYS, "cuda_graph_bs_decode") if key not in meant]
    return tuple(
        Difference(key, reference.pins.get(key), candidate.pins.get(key))
        for key in keys
        if not _same(reference.pins.get(key), candidate.pins.get(key))
    )


def _live(info: Mapping[str, Any]) -> dict[str, Any]:
    """The flat start-up values, overridden by the scheduler's own state where that is reported (``internal_states``).

    With adaptive speculation the scheduler's num_steps is that of the moment, so the start-up value stays.
    """
    live = {key: value for key, value in info.items() if key != "internal_states"}
    states = info.get("internal_states")
    if isinstance(states, list) and states and isinstance(states[0], Mapping):
        changing = (
            {"speculative_num_steps", "speculative_num_draft_tokens"} if live.get("speculative_adaptive") else set()
        )
        wanted = {*PIN_KEYS, "cuda_graph_config", *(key for key in states[0] if key.startswith("speculative_"))}
        live.update({key: states[0][key] for key in wanted - changing if key in states[0]})
    return live


def graphs_on(info: Mapping[str, Any]) -> bool:
    """Whether decode runs in CUDA graphs."""
    decode = _decode_graph(info)
    if "backend" in decode:
        return bool(decode["backend"] != "disabled")
    return not (info.get("disable_cuda_graph") or info.get("disable_decode_cuda_graph"))


def _decode_graph(info: Mapping[str, Any]) -> Mapping[str, Any]:
    config = info.get("cuda_graph_config")
    decode = config.get("decode") if isinstance(config, Mapping) else None
    return decode if isinstance(decode, Mapping) else {}


def _graph_sizes(info: Mapping[str, Any]) -> list[int] | None:
    sizes = _decode_graph(info).get("bs", info.get("cuda_graph_bs_decode"))
    return list(sizes) if isinstance(sizes, list) else None


def _drafter_name(info: Mapping[str, Any], arm: ArmConfig, drafters: Mapping[str, Drafter]) -> str | None:
    path = info.get("speculative_draft_model_path")
    if not isinstance(path, str):
        return None
    asked = drafters.get(arm.draft_model) if arm.draft_model else None
    for drafter in ([asked] if asked else []) + list(drafters.values()):
        if drafter.path.rstrip("/") == path.rstrip("/"):
            return drafter.name
    return _OWN_LAYERS if path == info.get("model_path") else path


def _rule(field: str, arm: ArmConfig, runs: ArmConfig) -> str | None:
    """Name of the known rewrite that explains a difference in ``field``, None where none does."""
    asked = (arm.algorithm or "").upper()
    if field == "algorithm":
        return "algorithm_alias" if (asked, runs.algorithm) in _ALIASES else None
    if field == "num_draft_tokens" and runs.topk == 1 and runs.num_steps is not None and asked not in _CHAIN_ONLY:
        return "topk1_draft_tokens" if runs.num_draft_tokens == runs.num_steps + 1 else None
    if asked == "NGRAM" and field in ("topk", "num_steps"):
        return "ngram_breadth"
    if asked in _CHAIN_ONLY and field in ("topk", "num_steps"):
        return "chain_only" if getattr(runs, field) == 1 else None
    return None


def _adaptive(key: str, asked: Any, runs: Any) -> bool:
    return key == "speculative_adaptive" and bool(asked) and not runs


def _word(value: Any) -> str | None:
    return value.upper() if isinstance(value, str) and value.upper() not in ("", "NONE") else None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _same(asked: Any, runs: Any) -> bool:
    if isinstance(asked, list | tuple) or isinstance(runs, list | tuple):
        return _as_list(asked) == _as_list(runs)
    if all(value is None or value is False for value in (asked, runs)):
        return True  # a switch that was not given
    return bool(asked == runs) or (isinstance(asked, str) and asked == str(runs))


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
