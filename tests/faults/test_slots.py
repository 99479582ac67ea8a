"""Two slots of one machine: two servers at a time that share nothing, and the notice that they had a neighbour."""

from __future__ import annotations

from pathlib import Path

from faults_helpers import Lab, marked, read, wait_for

SLOW = {"simulate": {"time_scale": 10.0}, "workload": {"max_tokens": 100}}
APART = (b"CUDA_VISIBLE_DEVICES", b"TRITON_CACHE_DIR", b"FLASHINFER_WORKSPACE_BASE", b"SPECSWEEP_BASE")


def servers(lab: Lab) -> dict[bytes, dict[bytes, bytes]]:
    """Port -> what keeps it apart from others, of the servers that run now."""
    found = {}
    for pid in marked(lab.base):
        words = read(pid, "cmdline").split(b"\0")
        pairs = dict(item.partition(b"=")[::2] for item in read(pid, "environ").split(b"\0"))
        if b"--port" in words:
            found[words[words.index(b"--port") + 1]] = {name: pairs.get(name, b"") for name in APART}
    return found


def test_two_slots_of_one_machine(lab: Lab) -> None:
    lab.write(SLOW)
    lab.save({**lab.space(), "hosts": [{**lab.host, "gpus": [0, 1], "slots": 2}]})
    process = lab.spawn("start")
    wait_for(lambda: len(servers(lab)) == 2 or process.poll() is not None, said=lab.said)
    seen = servers(lab)
    assert len(seen) == 2, lab.said()
    for name in APART:
        assert len({each[name] for each in seen.values()}) == 2, name
    assert {each[b"CUDA_VISIBLE_DEVICES"] for each in seen.values()} == {b"0", b"1"}
    lab.ends(process)
    lab.check({})
    flags = [row[0] for row in lab.query("SELECT flags FROM trials")]
    assert all("servers of ours ran on gpu." in text for text in flags), flags
    hosts = {row[0] for row in lab.query("SELECT DISTINCT host FROM launches WHERE role = 'baseline'")}
    assert hosts == {"gpu.0", "gpu.1"}, "each slot is compared with its own baseline"


def test_killed_with_two_slots_and_resumed(lab: Lab) -> None:
    """Both leases are taken over at once, both servers ended, the results the same."""
    lab.write(SLOW)
    lab.save({**lab.space(), "hosts": [{**lab.host, "gpus": [0, 1], "slots": 2}]})
    process = lab.spawn("start")
    lab.until(lab.measuring())
    wait_for(lambda: len(servers(lab)) == 2, said=lab.said)
    process.kill()
    process.wait()
    before = lab.blocks()
    lab.run("resume")
    lab.check(before)
    locks = sorted(path.parent.relative_to(lab.base).parts[1:] for path in Path(lab.base).glob("*/**/lock"))
    assert locks == [()], "one lock for the machine"
