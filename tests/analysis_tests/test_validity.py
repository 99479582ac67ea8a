"""Every gate fires on what it is for and keeps quiet on what it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sweep.analysis import AnalysisSettings, Finding
from sweep.analysis.figures import extract
from sweep.analysis.validity import gates, impossible
from sweep.model import ArmConfig, BlockResult, Flag, GpuTelemetry, RequestRecord
from tests.analysis_tests.made import ARMS, AT_8, CONFIGS, Night, block, load_block, request

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
        (
            telemetry(reasons=("hw_thermal_slowdown",)),
            "reasons hw_thermal_slowdown, the baseline before it none",
        ),
        (telemetry(clock=1580.0), "SM clock 1580 MHz, its baselines' 1980"),
        (telemetry(heat=82.0), "82 °C, its baselines' 60"),
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


def test_a_baseline_s_graphs_and_retractions_count_against_what_is_compared_with_it() -> None:
    line = "Decode batch, #running-req: 8, cuda graph: False"
    off = changed(lambda _, r: r, log_flags={"cuda_graph_off": line})
    (found,) = findings(off, PLAIN)
    assert (found.flag, found.evidence) == (
        Flag.CUDA_GRAPH_OFF,
        f"concurrency 8: the baseline before it: {line}",
    )
    (found,) = findings(changed(lambda k, r: replace(r, retractions=int(k == 0))), PLAIN)
    assert (found.flag, found.evidence) == (Flag.RETRACTIONS, "concurrency 8: the baseline before it: 1 retractions")


def test_a_baseline_whose_cache_was_not_flushed_hides_nothing() -> None:
    clean = changed(lambda _, r: replace(r, cached_tokens=12))
    full = changed(lambda _, r: replace(r, cached_tokens=200))
    night = Night()
    for trial, blocks in ((None, full), (None, clean), (0, full), (None, clean), (1, clean), (None, clean)):
        night.add(trial, blocks)
    found = gates([extract(launch, ()) for launch in night.launches], CONFIGS, SETTINGS)
    assert [f.flag for f in found[0]] == [Flag.CACHED_TOKENS]
    assert 1 not in found


@pytest.mark.parametrize(
    ("nights", "flagged"),
    [
        # A baseline that was hot hours ago says nothing about a hot candidate between two cool ones.
        ("hot cool HOT cool", "the baseline before it none"),
        ("hot cool COOL cool", None),
        ("cool cool HOT hot", "the baseline before it none"),
        ("cool cool COOL hot", "throttle reasons none, the baseline after it hw_thermal_slowdown"),
        ("cool hot HOT hot cool", None),
    ],
)
def test_throttling_is_judged_by_the_baselines_around_the_launch(nights: str, flagged: str | None) -> None:
    hot, cool = telemetry(reasons=("hw_thermal_slowdown",)), telemetry()
    night = Night()
    for word in nights.split():
        night.add(0 if word.isupper() else None, hot if word.lower() == "hot" else cool)
    found = gates([extract(launch, ()) for launch in night.launches], CONFIGS, SETTINGS).get(0, ())
    assert [f.flag for f in found] == ([] if flagged is None else [Flag.THROTTLED])
    if flagged is not None:
        assert flagged in found[0].evidence


@pytest.mark.parametrize(("clock", "fires"), [(1980.0, False), (1965.0, False), (1950.0, True)])
def test_a_power_limit_that_was_touched_for_a_moment_is_no_throttling(clock: float, fires: bool) -> None:
    capped = telemetry(clock=clock, reasons=("sw_power_cap",))
    assert bool(findings(telemetry(), capped)) is fires
    assert bool(findings(capped, telemetry())) is fires  # the other way round the gain would be too high
    assert findings(telemetry(), telemetry(clock=clock, reasons=("hw_thermal_slowdown",)))  # heat always counts


def test_clock_and_heat_are_interpolated_between_the_baselines_around() -> None:
    def judged(*clocks: float) -> tuple[Finding, ...]:
        night = Night()
        for place, clock in enumerate(clocks):
            night.add(0 if place == 1 else None, telemetry(clock=clock))
        return gates([extract(launch, ()) for launch in night.launches], CONFIGS, SETTINGS).get(0, ())

    assert judged(1980.0, 1900.0, 1820.0) == ()  # it fell steadily, and so did the level
    assert [f.flag for f in judged(1980.0, 1900.0, 1980.0)] == [Flag.THROTTLED]


def test_a_server_beside_it_is_the_one_to_compare_with() -> None:
    night = Night()
    night.add(None, telemetry())
    hot = telemetry(reasons=("hw_thermal_slowdown",))
    night.add(None, hot, pair=1, slot=1)
    night.add(0, hot, pair=1, slot=1)
    night.add(None, telemetry())
    assert gates([extract(launch, ()) for launch in night.launches], CONFIGS, SETTINGS) == {}


def test_what_cannot_have_happened_makes_a_block_invalid() -> None:
    arm = ArmConfig("EAGLE3", "drafter", 3, 1, 8)  # a chain of three: at most four tokens a step

    def shown(accept: float, **more: int) -> BlockResult:
        (row,) = load_block(800.0, accept=None).requests[:1]
        steps = 100
        return block([replace(row, verify_steps=steps, correct_drafts=round((accept - 1) * steps), **more)])

    assert impossible(shown(4.0), arm) is None
    found = impossible(shown(4.2), arm)
    assert found is not None
    assert found.startswith("impossible accept length 4.20: 320 drafts accepted in 100 verify steps")
    assert "at most 4 tokens a step" in found
    assert impossible(shown(4.2), replace(arm, num_steps=None)) is None  # up to eight where the depth is not ours
    assert impossible(shown(9.0), replace(arm, num_steps=None)) is not None
    assert impossible(shown(9.0), ArmConfig("EAGLE3", "drafter")) is None  # the engine's own choice, not read back
    assert impossible(shown(2.0, prompt_tokens=40, cached_tokens=40), arm) is None
    full = impossible(shown(2.0, prompt_tokens=40, cached_tokens=41), arm)
    assert full == "impossible cache: 41 cached tokens of prompt p0, which has 40"


def test_blocks_that_are_invalid_are_not_seen() -> None:
    line = "Decode batch, #running-req: 8, cuda graph: False"
    off = changed(lambda _, r: r, log_flags={"cuda_graph_off": line}, invalid="the client was the limit")
    assert findings(PLAIN, [*off, *PLAIN]) == ()  # measured once more


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
