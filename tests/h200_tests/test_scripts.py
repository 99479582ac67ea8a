"""What ``benchmarks/real_gpu.py``, ``refit_studies.py`` and ``agree.py`` say of the stored studies."""

from __future__ import annotations

import csv
import json
import math
import statistics
from dataclasses import replace

import pytest

from launchers.simulated import truth
from storage.store import Store
from sweep.model import MeasuredLaunch
from tests.benchmark_scripts import benchmark
from tests.h200_tests.stored import STORED, analysed

# those that refit_studies imports by name come first
_, real_gpu, refit_studies, agree = map(benchmark, ("fit_profiles", "real_gpu", "refit_studies", "agree"))


def test_a_deep_chains_histogram_foretells_shallower_chains(smollm2: Store) -> None:
    found = real_gpu.histograms(smollm2, smollm2.study(None))
    assert set(found) == {1, 3, 5}
    for deep, steps in ((5, 1), (5, 3), (3, 1)):
        error = real_gpu.shallower(found[deep], steps) / real_gpu.shallower(found[steps], steps) - 1
        assert -0.04 < error < 0, "a little too low: a deeper chain's next step begins at a harder place"


def test_the_profiles_say_what_was_measured() -> None:
    for profile, file, forced in (("h200-smollm2", "smollm2", False), ("h200-llama8b", "llama8b-shaped", True)):
        cells = refit_studies.throughputs(truth.load(profile), refit_studies.read(f"{file}.db.gz"), forced=forced)
        assert statistics.median(refit_studies.errors(cells)) < refit_studies.MEDIAN_ALLOWED
        assert max(refit_studies.errors(cells)) < refit_studies.WORST_ALLOWED


def test_a_garbage_collection_of_the_server_is_the_odd_block_of_each_launch(resident: Store) -> None:
    """Once in each launch, not frozen then. One request at a time, the tokens are made meanwhile and only come late."""
    pauses = real_gpu.pauses(resident, STORED / "pauses.csv")
    assert [pause.launch.launch_id for pause in pauses] == list(range(1, 9))
    for pause in pauses:
        assert real_gpu.ttft(pause.block) > 1.7 * max(map(real_gpu.ttft, pause.others))
        if pause.block.concurrency > 1:
            assert real_gpu.speed(pause.block) < 0.9 * min(map(real_gpu.speed, pause.others))

    def without(launch: MeasuredLaunch) -> MeasuredLaunch:
        gone = [pause.block for pause in pauses if pause.launch.launch_id == launch.launch_id]
        return replace(launch, blocks=tuple(block for block in launch.blocks if block not in gone))

    # Trial 1 was measured again for it: the study's state then, and what it would have been without.
    until = [m for m in resident.measured_launches(resident.study(None).id) if m.launch_id <= 6]
    assert "rounds contradict each other" in analysed(resident, until).not_comparable[1]
    assert not analysed(resident, [without(launch) for launch in until]).not_comparable


def test_what_graphs_cost_a_launch() -> None:
    with (STORED / "graphs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    seconds: dict[tuple[str, str, bool], list[float]] = {}
    for row in rows[1:]:  # the first launch of all still filled caches
        parts = [float(row[name] or 0) for name in ("prefill_s", "target_s", "draft_s", "extend_s")]
        seconds.setdefault((row["speculation"], row["sizes"], bool(row["prefill_s"])), []).append(sum(parts))
    tree = {sizes: found for (speculation, sizes, _), found in seconds.items() if speculation == "3/4/8"}
    few, seven, all_48 = [*tree["1"], *tree["48"]], tree["1 2 4 8 16 32 48"], tree["1 to 48"]
    assert max(few) < min(seven) < max(seven) < min(all_48)
    prefill = [row["prefill_s"] for row in rows if row["prefill_backend"] == "tc_piecewise"]
    assert sorted(prefill) == ["", "", "18.81"], "asked for three times, captured without speculation only"
    assert seconds["none", "1 2 4 8 16 32 48", True][0] > seconds["none", "1 2 4 8 16 32 48", False][0] + 15


def test_both_clients_see_the_same_server() -> None:
    """SGLang's client and ours in turn, the server's garbage collections frozen: every interval inside ±2 %."""
    servers = json.loads((STORED / "agree.json").read_text())
    assert [(server["name"], level["concurrency"]) for server in servers for level in server["levels"]] == [
        ("baseline", 1), ("baseline", 32), ("3/1/4", 1), ("3/1/4", 32),
    ]  # fmt: skip
    for level in (level for server in servers for level in server["levels"]):
        assert len(level["pairs"]) == 10
        found = agree.ratio(level["pairs"])
        assert found == pytest.approx(level["ratio"], abs=1e-5)
        assert 1 - agree.BOUND < found["low"] < found["high"] < 1 + agree.BOUND
        tpot = [math.log(pair["ours"]["tpot_s"] / pair["theirs"]["tpot_s"]) for pair in level["pairs"]]
        assert abs(statistics.fmean(tpot)) < 0.005
