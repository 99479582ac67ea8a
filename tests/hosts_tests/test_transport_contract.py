"""What every transport keeps, run for this machine and over a real sshd."""

from __future__ import annotations

import os
import stat
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sweep.errors import HostError

HOSTILE = [
    "plain",
    "with space",
    "",
    "'single' \"double\"",
    "$(touch pwned) `touch pwned` $HOME ${HOME}",
    "; touch pwned; #",
    "line one\nline two\n",
    "back\\slash \\n \\047 %s %%",
    "!history ~root *?[a]{b,c}",
    "-n",
    "ünïcödé 語 \U0001f600",
    "a=b|c>d<e&f",
    "\t\r\x01\x7f",
]


class TestTransportContract:
    def test_arguments_arrive_as_they_are(self, transport: Any, private_home: Path) -> None:
        program = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
        answer = transport.run(["python3", "-c", program, *HOSTILE])
        assert answer.exit_code == 0, answer
        assert answer.stdout.decode().split("\0") == HOSTILE
        assert not list(private_home.rglob("pwned"))

    def test_environment_values_arrive_as_they_are(self, transport: Any) -> None:
        for value in HOSTILE:
            answer = transport.run(
                ["env", f"HOSTILE={value}", "python3", "-c", "import os; print(ascii(os.environ['HOSTILE']))"]
            )
            assert answer.stdout.decode().strip() == ascii(value)

    def test_exit_code_and_both_outputs(self, transport: Any) -> None:
        answer = transport.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
        assert (answer.exit_code, answer.stdout, answer.stderr) == (3, b"out\n", b"err\n")

    def test_missing_program_is_127(self, transport: Any) -> None:
        assert transport.run(["no-such-program-anywhere"]).exit_code == 127

    def test_stdin_arrives(self, transport: Any) -> None:
        data = os.urandom(200_000)
        assert transport.run(["cat"], stdin=data).stdout == data

    def test_no_pipe_is_left_unread(self, transport: Any) -> None:
        """Five megabytes on each output while one is still sent in: an order of reading would hang."""
        script = "yes e | head -c 5000000 >&2; yes o | head -c 5000000; cat >/dev/null"
        answer = transport.run(["sh", "-c", script], stdin=b"i" * 5_000_000, timeout_s=60)
        assert (len(answer.stdout), len(answer.stderr), answer.exit_code) == (5_000_000, 5_000_000, 0)

    def test_timeout_is_a_host_error_that_names_the_command(self, transport: Any) -> None:
        begun = time.monotonic()
        with pytest.raises(HostError, match=r"`sleep` gave no answer in 0.5 s"):
            transport.run(["sleep", "20"], timeout_s=0.5)
        assert time.monotonic() - begun < 5

    def test_many_commands_at_once(self, transport: Any) -> None:
        """More than sshd's MaxSessions of ten."""
        answers: list[bytes] = []

        def one(number: int) -> None:
            answers.append(transport.run(["sh", "-c", f"sleep 0.2; echo {number}"]).stdout)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(int(a) for a in answers) == list(range(24))

    def test_put_and_read(self, transport: Any, tmp_path: Path) -> None:
        for name in ("a file", "$(touch pwned);'\"\n", "ü"):
            path = tmp_path / "new folder" / name
            content = os.urandom(100_000)
            transport.put(str(path), content)
            assert transport.read(str(path)) == content
            assert transport.read(str(path), offset=99_990) == content[-10:]
            assert transport.read(str(path), offset=10, limit=70_000) == content[10:70_010]
            assert transport.read(str(path), offset=100_000) == b""
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "new folder").stat().st_mode) == 0o700
        assert sorted(p.name for p in (tmp_path / "new folder").iterdir()) == sorted(
            ["a file", "$(touch pwned);'\"\n", "ü"]
        )

    def test_put_replaces_atomically(self, transport: Any, tmp_path: Path) -> None:
        path = tmp_path / "file"
        transport.put(str(path), b"a" * 50_000)
        seen: set[bytes] = set()
        over = threading.Event()

        def reader() -> None:
            while not over.is_set():
                seen.add(path.read_bytes())

        thread = threading.Thread(target=reader)
        thread.start()
        for letter in (b"b", b"c", b"d"):
            transport.put(str(path), letter * 50_000, mode=0o644)
        over.set()
        thread.join()
        assert {len(content) for content in seen} == {50_000}
        assert stat.S_IMODE(path.stat().st_mode) == 0o644

    def test_read_of_a_missing_file(self, transport: Any, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            transport.read(str(tmp_path / "none"))
        with pytest.raises(FileNotFoundError):
            transport.read("/proc/999999999/stat")

    def test_put_of_one_file_from_several_threads(self, transport: Any, tmp_path: Path) -> None:
        path = tmp_path / "shared"
        contents = [bytes([65 + number]) * 20_000 for number in range(4)]
        with ThreadPoolExecutor(4) as pool:
            for _ in range(10):
                list(pool.map(lambda content: transport.put(str(path), content), contents))
                assert transport.read(str(path)) in contents
        assert [p.name for p in tmp_path.iterdir() if p.name.endswith("shared") or "shared." in p.name] == ["shared"]

    def test_put_where_it_is_not_possible(self, transport: Any) -> None:
        with pytest.raises(HostError, match="cannot write /proc/none/file"):
            transport.put("/proc/none/file", b"")

    def test_process_files_are_readable(self, transport: Any) -> None:
        assert f"({Path('/proc/self/comm').read_text().strip()[:15]}".encode() in transport.read(
            f"/proc/{os.getpid()}/stat"
        )

    def test_home_folder(self, transport: Any) -> None:
        home = transport.run(["sh", "-c", "pwd"]).stdout.decode().strip()
        name = f".specsweep-test-{os.getpid()}"
        transport.put(f"~/{name}", b"x")
        try:
            assert transport.read(f"~/{name}") == b"x"
            assert (Path(home) / name).exists()
        finally:
            (Path(home) / name).unlink(missing_ok=True)

    def test_round_trip_time(self, transport: Any) -> None:
        assert 0.0 <= transport.rtt_s() < 0.5

    def test_forward(self, transport: Any) -> None:
        served: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                served.append(self.path)
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        body = os.urandom(1_000_000)
        bodies: list[bytes] = []
        try:
            with transport.forward(server.server_port) as url:

                def post(number: int) -> None:
                    request = urllib.request.Request(f"{url}/{number}", data=body)
                    with urllib.request.urlopen(request, timeout=30) as answer:
                        bodies.append(answer.read())

                threads = [threading.Thread(target=post, args=(number,)) for number in range(12)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            assert bodies == [body] * 12
            assert len(served) == 12
        finally:
            server.shutdown()
            server.server_close()

    def test_forward_to_a_closed_port(self, transport: Any) -> None:
        """A client sees a connection that ends, never one that hangs."""
        import socket

        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        with transport.forward(port) as url, pytest.raises(OSError, match=r"refused|closed|reset|Remote end"):
            urllib.request.urlopen(url, timeout=5)
