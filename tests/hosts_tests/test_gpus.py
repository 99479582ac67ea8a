"""GPUs as nvidia-smi shows them: parsing, foreign processes, memory that comes back late, telemetry."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hosts_helpers import Make, gone, launch, log_until, wait_for

from launchers import gpus
from launchers.hosts.local import LocalSettings, LocalTransport
from launchers.servers import HostServers
from sweep.errors import HostError
from sweep.model import Gpu, GpuProcess
from sweep.seams import Completed, HostTools

# Two GPUs. ``mem`` and ``apps`` in its folder say what is in use; a file ``held`` holds a pid that is listed with
# 50000 MiB on GPU 0 as long as the file exists.
SMI = r"""#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >> calls
held=$(cat held 2>/dev/null)
case "$1" in
--query-gpu=index*)
  echo "1, GPU-bb, NVIDIA H200, 143771, 4, 570.133.20"
  echo "0, GPU-aa, NVIDIA H200, 143771, $((4 + ${held:+50000} + $(cat mem 2>/dev/null || echo 0))), 570.133.20";;
--query-compute-apps=*)
  if [ -n "$held" ]; then echo "GPU-aa, $held, 50000"; fi
  cat apps 2>/dev/null || true;;
*clocks_event_reasons*)
  if [ -e old ]; then echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2; fi
  cat telemetry;;
*) cat telemetry;;
esac
"""


@pytest.fixture
def smi(tmp_path: Path) -> Path:
    folder = tmp_path / "smi"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(SMI)
    (folder / "nvidia-smi").chmod(0o755)
    return folder


@pytest.fixture
def servers(make_servers: Make, smi: Path) -> HostServers:
    transport = LocalTransport(LocalSettings("here"))
    made = make_servers(transport, tools=HostTools(gpu_query=(str(smi / "nvidia-smi"),)))
    made.prepare()
    return made


class TestAnswers:
    def test_gpus(self) -> None:
        text = "1, GPU-bb, NVIDIA H200, 143771, 4, 570.1\n0, GPU-aa, NVIDIA GB200, [N/A], [Not Supported], 570.1\n"
        found, driver = gpus.parse_gpus(text)
        assert found == (Gpu(0, "GPU-aa", "NVIDIA GB200", 0, 0), Gpu(1, "GPU-bb", "NVIDIA H200", 143771, 4))
        assert driver == "570.1"
        assert gpus.parse_gpus("No devices were found\n") == ((), None)

    def test_processes(self) -> None:
        who = {"7": {"user": "ann", "comm": "python", "ours": False}}
        assert gpus.parse_processes("GPU-aa, 7, 1000\nGPU-aa, 8, [N/A]\nGPU-aa, [N/A], 1\n", who) == (
            GpuProcess("GPU-aa", 7, 1000, "ann", "python", False),
            GpuProcess("GPU-aa", 8, 0, None, None, False),
        )

    @pytest.mark.parametrize(
        ("mask", "names"),
        [
            ("0x0000000000000000", ()),
            ("0x0000000000000001", ()),
            ("0x0000000000000004", ("sw_power_cap",)),
            ("0x0000000000000069", ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown")),
            ("0x0000000000001000", ("reason_0x1000",)),
            ("[N/A]", ()),
        ],
    )
    def test_throttle_reasons(self, mask: str, names: tuple[str, ...]) -> None:
        assert gpus.reasons(mask) == names


class TestHost:
    def test_facts(self, servers: HostServers) -> None:
        facts = servers.inspect()
        assert [(gpu.index, gpu.uuid, gpu.memory_used_mib) for gpu in facts.gpus] == [
            (0, "GPU-aa", 4),
            (1, "GPU-bb", 4),
        ]
        assert facts.driver_version == "570.133.20"
        assert facts.gpu_processes == ()

    def test_driver_that_fails(self, make_servers: Make, smi: Path) -> None:
        (smi / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed' >&2\nexit 9\n")
        broken = make_servers(
            LocalTransport(LocalSettings("here")), tools=HostTools(gpu_query=(str(smi / "nvidia-smi"),))
        )
        with pytest.raises(HostError, match=r"nvidia-smi fails with status 9: NVIDIA-SMI has failed"):
            broken.prepare()

    def test_foreign_processes_are_named_and_left_alone(self, servers: HostServers, smi: Path) -> None:
        bystander = subprocess.Popen(["sleep", "60"])
        try:
            (smi / "apps").write_text(f"GPU-aa, {bystander.pid}, 900\n")
            (found,) = servers.dirty_gpus((0, 1))
            assert (found.pid, found.memory_mib, found.command, found.ours) == (bystander.pid, 900, "sleep", False)
            assert (
                found.user == subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
            )
            assert servers.dirty_gpus((1,)) == (), "another GPU is not our business"
            assert bystander.poll() is None
        finally:
            bystander.kill()
            bystander.wait()

    def test_our_own_processes_are_not_foreign(self, servers: HostServers, smi: Path) -> None:
        server = servers.start(launch(gpus=(0,)), "1")
        log_until(servers, server, b"ready")
        (smi / "apps").write_text(f"GPU-aa, {server.pid}, 900\n")
        assert servers.dirty_gpus((0,)) == ()
        assert [p.ours for p in servers.inspect().gpu_processes] == [True]
        (smi / "apps").unlink()
        assert servers.stop(server).clean


class TestMemoryAfterAStop:
    def test_waits_until_the_driver_gives_it_back(self, servers: HostServers, smi: Path) -> None:
        server = servers.start(launch(gpus=(0,)), "1")
        log_until(servers, server, b"ready")
        held = smi / "held"
        held.write_text(str(server.pid))

        def driver() -> None:
            wait_for(lambda: gone(server.pid))
            time.sleep(1.0)
            held.unlink()

        threading.Thread(target=driver, daemon=True).start()
        report = servers.stop(server)
        assert not held.exists(), "the report comes after the memory is back, a second after the process went"
        assert report.clean
        assert 1.0 < report.took_s < 6
        assert report.memory_left_mib == 0

    def test_memory_that_does_not_come_back_is_reported(
        self, servers: HostServers, smi: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("launchers.gpu_watch.MEMORY_WAIT_S", 0.3)
        server = servers.start(launch(gpus=(0,)), "1")
        (smi / "mem").write_text("257")
        report = servers.stop(server)
        assert not report.clean
        assert report.memory_left_mib == 257
        assert "257 MiB more GPU memory" in report.note

    def test_memory_within_the_slack_is_clean(self, servers: HostServers, smi: Path) -> None:
        server = servers.start(launch(gpus=(0,)), "1")
        (smi / "mem").write_text("256")
        assert servers.stop(server).clean

    def test_neighbours_memory_is_not_ours(self, servers: HostServers, smi: Path) -> None:
        """Two servers share a GPU: what the other one took meanwhile does not make a stop unclean."""
        first, second = servers.start(launch(gpus=(0,)), "1"), servers.start(launch(gpus=(0,)), "2")
        (smi / "mem").write_text("9000")
        assert servers.stop(first).clean
        (smi / "mem").write_text("0")
        assert servers.stop(second).clean


class TestTelemetry:
    def test_medians_and_reasons(self, servers: HostServers, smi: Path) -> None:
        rows = smi / "telemetry"
        rows.write_text("GPU-aa, 1980, 60, 430.5, 0x0000000000000001\nGPU-bb, 100, 30, 70, 0x1\n")
        sampler = servers.telemetry((0,), interval_s=0.05)
        sampler.start()
        time.sleep(0.3)
        rows.write_text("GPU-aa, 1200, 88, 700, 0x0000000000000040\nGPU-bb, 100, 30, 70, 0x1\n")
        wait_for(lambda: (smi / "calls").read_text().count("clocks.sm") > 4)
        time.sleep(0.3)
        (found,) = sampler.stop()
        assert found.gpu_uuid == "GPU-aa"
        assert found.sm_clock_mhz in (1980, 1200, 1590)
        assert found.throttle_reasons == ("hw_thermal_slowdown",)

    def test_older_drivers(self, servers: HostServers, smi: Path) -> None:
        (smi / "old").touch()
        (smi / "telemetry").write_text("GPU-aa, [N/A], 60, [N/A], 0x4\n")
        sampler = servers.telemetry((0,), interval_s=0.05)
        sampler.start()
        wait_for(lambda: "clocks_throttle_reasons" in (smi / "calls").read_text())
        time.sleep(0.2)
        (found,) = sampler.stop()
        assert (found.sm_clock_mhz, found.temperature_c, found.power_w) == (None, 60, None)
        assert found.throttle_reasons == ("sw_power_cap",)

    def test_a_program_that_only_activate_finds(self, make_servers: Make, smi: Path, tmp_path: Path) -> None:
        """It is run by its path: entering the environment once a second would disturb what is measured."""
        (smi / "telemetry").write_text("GPU-aa, 1980, 60, 430.5, 0x1\n")
        entered = tmp_path / "entered"
        activate = f"export PATH={smi}:$PATH; echo x >> {entered}"
        servers = make_servers(
            LocalTransport(LocalSettings("here")), tools=HostTools(gpu_query=("nvidia-smi",)), activate=activate
        )
        servers.prepare()
        before = entered.read_text()
        sampler = servers.telemetry((0,), interval_s=0.05)
        sampler.start()
        wait_for(lambda: (smi / "calls").read_text().count("clocks.sm") > 1)
        assert [found.sm_clock_mhz for found in sampler.stop()] == [1980]
        assert entered.read_text() == before

    def test_nothing_is_asked_without_gpus(self, servers: HostServers, smi: Path) -> None:
        before = (smi / "calls").read_text()
        sampler = servers.telemetry((), interval_s=0.01)
        sampler.start()
        time.sleep(0.1)
        assert sampler.stop() == ()
        assert (smi / "calls").read_text() == before

    def test_at_most_one_call_per_interval(self) -> None:
        calls: list[Any] = []

        def ask(options: Any) -> Completed:
            calls.append(options)
            return Completed(0, b"GPU-aa, 1, 2, 3, 0x0\n", b"")

        sampler = gpus.Telemetry(ask, ["GPU-aa"], interval_s=0.2)
        sampler.start()
        time.sleep(0.5)
        sampler.stop()
        assert 2 <= len(calls) <= 3

    def test_a_lost_host_ends_nothing(self) -> None:
        def ask(options: Any) -> Completed:
            raise HostError("away")

        sampler = gpus.Telemetry(ask, ["GPU-aa"], interval_s=0.01)
        sampler.start()
        time.sleep(0.05)
        (found,) = sampler.stop()
        assert found.sm_clock_mhz is None


def test_environment_of_ray_does_not_reach_a_server(make_servers: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray sets OMP_NUM_THREADS=1 and blanks CUDA_VISIBLE_DEVICES in its workers."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("RAY_JOB_ID", "01")
    monkeypatch.setenv("MY_OWN", "kept")
    servers = make_servers(LocalTransport(LocalSettings("here")))
    servers.prepare()
    server = servers.start(launch(env={"CUDA_VISIBLE_DEVICES": "1,0"}), "1")
    log_until(servers, server, b"ready")
    environment = dict(
        item.split(b"=", 1) for item in Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0") if b"=" in item
    )
    assert environment[b"CUDA_VISIBLE_DEVICES"] == b"1,0"
    assert environment[b"MY_OWN"] == b"kept"
    assert b"OMP_NUM_THREADS" not in environment
    assert b"RAY_JOB_ID" not in environment
    assert os.environ["OMP_NUM_THREADS"] == "1"
