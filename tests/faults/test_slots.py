"""Two entries for one machine, each with a GPU and a folder of its own: two servers at a time that share nothing."""

from __future__ import annotations

from faults_helpers import Lab, marked, read, wait_for

SLOW = {"simulate": {"time_scale": 10.0}, "workload": {"max_tokens": 100}}


def test_two_slots_of_one_machine(lab: Lab) -> None:
    lab.write(SLOW)
    slots = [
        {**lab.host, "name": f"gpu-{gpu}", "gpus": [gpu], "base_dir": f"{lab.host['base_dir']}/slot{gpu}"}
        for gpu in (0, 1)
    ]
    lab.save({**lab.space(), "hosts": slots})
    process = lab.spawn("start")

    def servers() -> dict[bytes, bytes]:
        """CUDA_VISIBLE_DEVICES -> command line, of the servers that run now."""
        found = {}
        for pid in marked(lab.base):
            devices = [v for v in read(pid, "environ").split(b"\0") if v.startswith(b"CUDA_VISIBLE_DEVICES=")]
            if devices and b"--port" in read(pid, "cmdline"):
                found[devices[0].partition(b"=")[2]] = read(pid, "cmdline")
        return found

    wait_for(lambda: len(servers()) == 2 or process.poll() is not None, said=lab.said)
    seen = servers()
    assert set(seen) == {b"0", b"1"}, lab.said()
    ports = {command.split(b"\0--port\0")[1].split(b"\0")[0] for command in seen.values()}
    assert len(ports) == 2
    lab.ends(process)
    lab.check({})
