"""Several client processes through a whole study: the same number for every arm of a pair, and remembered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage.reading import block_figures
from sweep.analysis import analyse
from sweep.bench import health, parts
from sweep.model import ClientHealth
from tests.analysis_tests.made import AT_8, CLIENT, CONFIGS, THROUGHPUT_ONLY, Night, load_block

ONE = ("space.num_steps=[3]", "space.num_draft_tokens=[4]", "workload.repeats=1")
LOAD = ("workload.concurrency=[4]", "objectives=[output_throughput@4]")


def processes(lab, study) -> list[tuple[str, int, bool]]:
    """(role, client processes, valid) of every block in order of time."""
    return [(b.role, b.client["processes"], b.invalid is None) for b in block_figures(lab.store, study.id)]


@pytest.mark.parametrize("busy", ["baseline", "candidate"])
def test_a_client_that_was_the_limit_is_doubled_for_every_arm(lab, monkeypatch, busy):
    def busy_at_first(rows, found, elapsed, **more):
        """The real judgement, of a client that by itself takes a whole core and by two processes does not."""
        concerned = busy == "baseline" or any(row.verify_steps for row in rows)
        share = 0.95 if found.processes == 1 and len(rows) > 4 and concerned else 0.5
        in_time = replace(found, cpu_share=share, lag_p50_s=0.0, lag_p99_s=0.0)
        return health.why_invalid(rows, in_time, elapsed, **more)

    monkeypatch.setattr(parts, "why_invalid", busy_at_first)
    monkeypatch.setattr(parts, "BUSY_SHARE", 0.0)  # the client of these few tokens is idle, whatever it is said to be
    study = lab.run(*ONE, *LOAD, "workload.requests_per_level=8")
    found = processes(lab, study)
    # The block that found it out, and everything after it with two processes. Where it was a candidate's, no earlier
    # baseline can be compared with it: one is due at once, and the candidate is measured again.
    late = [("candidate", 1, False), ("candidate", 2, True), ("baseline", 2, True), ("candidate", 2, True)]
    if busy == "baseline":
        assert found == [("baseline", 1, False), ("baseline", 2, True), ("candidate", 2, True), ("baseline", 2, True)]
    else:
        assert found == [("baseline", 1, True), *late, ("baseline", 2, True)]
    (row,) = lab.best(study)["best"]
    assert row["gain"] is not None
    assert "client_limited" not in row["flags"]
    # Another start of the same study goes on with two.
    last = lab.store.last_client(study.id, "gpu", 4)
    assert last is not None
    assert (last[0].processes, len(last[0].by_process), last[1]) == (2, 2, None)
    assert lab.store.last_client(study.id, "gpu", 1) is None
    assert lab.store.last_client(study.id, "other", 4) is None


def test_a_stated_number_holds_at_every_level_that_has_so_many_requests(lab):
    study = lab.run(
        *ONE, "workload.client_processes=2", "workload.concurrency=[1, 4]", "objectives=[output_throughput@4]"
    )
    by_level = {b.concurrency: b.client["processes"] for b in block_figures(lab.store, study.id)}
    assert by_level == {1: 1, 4: 2}
    (row,) = lab.best(study)["best"]
    assert row["gain"] is not None
    for block in block_figures(lab.store, study.id):
        shares = block.client["by_process"]
        assert len(shares) == (0 if block.concurrency == 1 else 2)
        assert sum(share["requests"] for share in shares) == (0 if block.concurrency == 1 else block.n_requests)


def test_pairs_are_made_between_equal_numbers_only():
    def analysed(*candidate: ClientHealth):
        night = Night()
        for trial, client in ((None, CLIENT), (0, candidate[0]), (None, CLIENT)):
            night.add(trial, [load_block(800.0 + 80 * (trial == 0), n, client=client) for n in range(3)])
        return analyse(night.launches, CONFIGS, objectives=[AT_8], settings=THROUGHPUT_ONLY)

    alike = analysed(CLIENT)
    assert alike.not_comparable == {}
    assert alike.find(0, "output_throughput", 8).gain.estimate == pytest.approx(0.10)
    apart = analysed(replace(CLIENT, processes=2))
    assert "no baseline was measured on h" in apart.not_comparable[0]
    assert apart.find(0, "output_throughput", 8).gain is None
