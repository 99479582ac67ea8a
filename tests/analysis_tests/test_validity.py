"""Every gate fires on what it is for and keeps quiet on what it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sweep.analysis import AnalysisSettings, Finding
from sweep.analysis.figures import extract
from sweep.analysis.validity import gates
from sweep.model import ArmConfig, BlockResult, ClientHealth, Flag, GpuTelemetry, RequestRecord
from tests.analysis_tests.made import ARMS, AT_8, CLIENT, CONFIGS, Night, block, load_block, request

SETTINGS = AnalysisSettings()


def findings(
    base: list[BlockResult], arm: list[BlockResult], settings: AnalysisSettings = SETTINGS, config: ArmConfig = ARMS[0]
) -> tuple[Finding, ...]:
    night = Night()
    night.add(None, base)
    night.add(None, base)
    night.add(0, arm, config=config)
    found = gates([extract(launch, ()) for launch in night.launches], {**CONFIGS, config.key: config}, settings)
    return found.get(0, ())


def changed(change: Callable[[int, RequestRecord], RequestRecord], count: int = 8, **more: object) -> list[BlockResult]:
    rows = [change(k, request(k, 100.0)) for k in range(count)]
    return [block(rows, concurrency=8, **more)]  # type: ignore[arg-type]  # block's own keywords


PLAIN = changed(lambda _, r: r)


def test_an_ordinary_launch_has_no_findings() -> None:
    assert findings(PLAIN, PLAIN) == ()


def test_cached_tokens_above_the_shared_prefix() -> None:
    prefix = changed(lambda _, r: replace(r, cached_tokens=12))
    cached = changed(lambda k, r: replace(r, cached_tokens=200 if k == 3 else 12))
    (found,) = findings(prefix, cached)
    assert found.flag is Flag.CACHED_TOKENS
    assert "200 cached tokens, the shared prefix explains 12" in found.evidence
    assert findings(prefix, prefix) == ()
    stated = replace(SETTINGS, shared_prefix_tokens=0)
    assert [f.flag for f in findings(prefix, prefix, stated)] == [Flag.CACHED_TOKENS]


def test_retractions_by_request_and_by_log_line() -> None:
    (found,) = findings(PLAIN, changed(lambda k, r: replace(r, retractions=2 if k == 0 else 0)))
    assert (found.flag, found.evidence) == (Flag.RETRACTIONS, "concurrency 8: 2 retractions")
    line = "KV cache pool is full. Retract requests. #retracted_reqs: 1"
    (found,) = findings(PLAIN, changed(lambda _, r: r, log_flags={"retractions": line}))
    assert (found.flag, found.evidence) == (Flag.RETRACTIONS, f"concurrency 8: {line}")
    assert findings(PLAIN, changed(lambda _, r: replace(r, retractions=0))) == ()


def test_cuda_graph_off_only_where_graphs_were_asked_for() -> None:
    line = "Decode batch, #running-req: 8, cuda graph: False"
    off = changed(lambda _, r: r, log_flags={"cuda_graph_off": line})
    (found,) = findings(PLAIN, off)
    assert (found.flag, found.evidence) == (Flag.CUDA_GRAPH_OFF, f"concurrency 8: {line}")
    assert findings(PLAIN, off, config=replace(ARMS[0], cuda_graph=False)) == ()


def test_lengths_differ_beyond_the_baselines_own_spread() -> None:
    short = changed(lambda _, r: replace(r, output_tokens=120))
    (found,) = findings(PLAIN, short)
    assert found.flag is Flag.LENGTHS_DIFFER
    assert "-40.0% long" in found.evidence
    # Texts that part at near-ties end elsewhere, up or down: no bias, no flag.
    parted = changed(lambda k, r: replace(r, output_tokens=200 + (20 if k % 2 else -20)))
    assert findings(PLAIN, parted) == ()


def test_any_length_difference_counts_under_ignore_eos() -> None:
    fixed = replace(SETTINGS, ignore_eos=True)
    one = changed(lambda k, r: replace(r, output_tokens=199 if k == 5 else 200))
    (found,) = findings(PLAIN, one, fixed)
    assert (found.flag, found.evidence) == (
        Flag.LENGTHS_DIFFER,
        "concurrency 8: 1 of 8 answers differ in length under ignore_eos",
    )
    assert findings(PLAIN, PLAIN, fixed) == ()
    assert findings(PLAIN, one) == ()  # with a natural stop it is nothing


def telemetry(clock: float = 1980.0, heat: float = 60.0, reasons: tuple[str, ...] = ()) -> list[BlockResult]:
    return changed(lambda _, r: r, gpus=(GpuTelemetry("GPU-1", clock, heat, 500.0, reasons),))


@pytest.mark.parametrize(
    ("arm", "evidence"),
    [
        (telemetry(reasons=("hw_thermal_slowdown",)), "throttle reasons hw_thermal_slowdown, the baseline's none"),
        (telemetry(clock=1580.0), "SM clock 1580 MHz, the baseline's 1980"),
        (telemetry(heat=82.0), "82 °C, the baseline's 60"),
    ],
)
def test_throttled_where_clock_heat_or_reasons_differ(arm: list[BlockResult], evidence: str) -> None:
    (found,) = findings(telemetry(), arm)
    assert found.flag is Flag.THROTTLED
    assert evidence in found.evidence


def test_not_throttled_within_tolerance_when_both_are_or_for_harmless_reasons() -> None:
    assert findings(telemetry(), telemetry(clock=1950.0, heat=64.0)) == ()
    hot = telemetry(reasons=("sw_power_cap",))
    assert findings(hot, hot) == ()
    assert findings(telemetry(), telemetry(reasons=("gpu_idle",))) == ()


def test_client_limited_by_lag_or_by_path_is_invalid() -> None:
    late = replace(CLIENT, lag_p99_s=0.2)
    (found,) = findings(PLAIN, changed(lambda _, r: r, client=late))
    assert (found.flag, found.invalid) == (Flag.CLIENT_LIMITED, True)
    assert "200 ms late" in found.evidence
    narrow = ClientHealth(0.0, 0.001, 0.1, chunks=2000, path_capacity_chunks_per_s=2500.0)
    (found,) = findings(PLAIN, changed(lambda _, r: r, client=narrow))  # 2,000 chunks in 2 s
    assert "2500 chunks/s, under 3 times the 1000 chunks/s" in found.evidence
    wide = replace(narrow, path_capacity_chunks_per_s=3100.0)
    assert findings(PLAIN, changed(lambda _, r: r, client=wide)) == ()


def test_too_few_successes_is_a_verdict_not_a_flag() -> None:
    def lose(k: int, r: RequestRecord) -> RequestRecord:
        return replace(r, error="HTTP 500", output_tokens=None) if k == 0 else r

    (found,) = findings(PLAIN, changed(lose))
    assert (found.flag, found.invalid) == (None, True)
    assert "7 of 8 requests succeeded" in found.evidence
    assert findings(PLAIN, changed(lose, 200)) == ()  # one of 200 is within 99 %
    (spoilt,) = findings(PLAIN, changed(lambda _, r: r, invalid="more tokens than asked for"))
    assert spoilt.invalid
    assert "more tokens than asked for" in spoilt.evidence


@pytest.mark.parametrize(("speed", "fires"), [(1900.0, True), (1400.0, False)])
def test_a_ratio_above_the_accept_length_is_impossible(speed: float, fires: bool) -> None:
    night = Night()
    for trial, level in ((None, 800.0), (None, 800.0), (0, speed), (None, 800.0)):
        night.add(trial, [load_block(level, k, accept=None if trial is None else 2.0) for k in range(3)])
    found = night.analyse(AT_8)
    flags = found.flags(0)
    assert (Flag.ABOVE_ACCEPT_LENGTH in flags) is fires
    if fires:
        (finding,) = found.findings[0]
        assert "2.375 times the baseline with an accept length of 2.000" in finding.evidence
        assert finding.launch_id == 3
