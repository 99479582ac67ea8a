"""What specsweep runs on a GPU host: starts a server, watches the controller's lease, ends what it started.

This is one file of more than 300 lines on purpose: it is copied to the host by SFTP and run there with nothing but
that host's Python (3.8 or newer, standard library only, Linux).

Every command is ``python supervisor.py COMMAND BASE`` (or :func:`main` of the imported file, which spares compiling it
each time) with one JSON object on stdin and one JSON object on stdout,
``{"ok": true, ...}`` or ``{"ok": false, "kind": ..., "message": ...}``. Commands may be repeated without harm.
Files below BASE (mode 0700, files 0600)::

    lock                    flock taken for the moment in which a lease or launches change, also those of slots
    lease.json              who owns this host: owner, epoch, token, lease_s, last renewal on this host's own clock
    runs/STUDY.LAUNCH.EPOCH one folder per launch: state.json (replaced atomically), stop.json (a request to stop),
                            server.log, server.log.1, ... (pieces of SEGMENT bytes: byte N of the log is in piece
                            N // SEGMENT), supervisor.log, and the files the launch asked for until the server ends
    slots/0-1/              a slot, GPUs 0 and 1 of the host: a BASE of its own, with a lease and launches

Ownership. An epoch grows with every change of owner; a request with an epoch other than the lease's is refused, so a
controller that was replaced can touch nothing. The lease is measured with CLOCK_BOOTTIME: wall clock jumps do not
matter, and a lease from before a reboot is over. Whoever holds the host holds all of its GPUs, whoever holds a slot
those of its name: two owners whose GPUs might be the same exclude each other.

Processes. The supervisor is a session of its own and a child subreaper: whatever the server forks, however often it
changes session or loses its parent, stays below it in the process tree. The server leads its own session and process
group, dies when the supervisor is killed (PR_SET_PDEATHSIG), and carries a marker in its environment. A process is
ours if its (pid, start time) is recorded, if it descends from one that is, if its environment holds the marker, or if
it is in the launch's cgroup. Names and patterns are never looked at.

Containers. Where the launch names a docker program, the server's process is ``docker run`` in the foreground and its
container carries the marker as a label. Whatever ends the launch, containers with that label are stopped and removed.
"""

from __future__ import annotations

# Paths stay strings here (pathlib has no words for descriptors), and the newer idioms of typing need Python 3.9.
# ruff: noqa: PTH102, PTH103, PTH105, PTH106, PTH108, PTH111, PTH112, PTH113, PTH115, PTH116, PTH118, PTH119, PTH120, PTH123
# ruff: noqa: PTH208
# ruff: noqa: UP006, UP031, UP035, UP045
import binascii
import contextlib
import errno
import fcntl
import json
import os
import pwd
import re
import select
import signal
import sys
import time

# This program is started for every question, so what few commands need is imported there: that halves its start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, NoReturn, Optional

    State = Dict[str, Any]  # a JSON object; the fields of a launch's record are made in cmd_start

SEGMENT = 8 * 1024 * 1024
KEEP_SEGMENTS = 8  # the first one, where the arguments are, and the last seven: 64 MiB at most
PORTS = (20000, 32000)  # below Linux's range for outgoing connections, which could take a port while weights load
KEEP_RUNS = 50
KILL_DEADLINE_S = 10.0
STRAGGLERS_S = 0.5  # what the server's other processes get after its main process has gone
MARKER = "SPECSWEEP_MARKER"
BASE_VARIABLE = "SPECSWEEP_BASE"
SLOT = re.compile(r"\d+(-\d+)*$")  # the name of a slot's folder: its GPUs
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
LABEL = "specsweep.marker"  # of a container; its value is the marker
NO_ANSWER = "(docker gives no answer)"  # instead of a container's id
HOLD_S = 1.0  # output that may be the beginning of a secret waits so long for the rest
MIN_SECRET = 6  # characters; shorter values would mask half of a log: they are let pass here and refused at the start


class Refused(Exception):
    """A request that cannot be granted; becomes ``{"ok": false, "kind": kind, "message": ...}``."""

    def __init__(self, kind: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.reply = dict(more, ok=False, kind=kind, message=message)


# ------------------------------------------------------------------------------------------------ small things


def boottime() -> float:
    """Seconds since boot, suspended time included; the same for every process of the host."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def slurp(path: str) -> str:
    try:
        with open(path, "rb") as handle:
            return handle.read().decode("utf-8", "replace")
    except OSError:
        return ""


def boot_id() -> str:
    return slurp("/proc/sys/kernel/random/boot_id").strip()


def read_json(path: str) -> Optional[State]:
    """The object in a file, or None where there is none (missing, or a crash left half of it)."""
    try:
        with open(path, "rb") as handle:
            value = json.loads(handle.read().decode("utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_file(path: str, content: bytes) -> None:
    """Replace a file atomically, mode 0600."""
    temporary = "%s.%s" % (path, binascii.hexlify(os.urandom(6)).decode())
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(content)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_json(path: str, value: State) -> None:
    write_file(path, json.dumps(value).encode("utf-8"))


def host_base(base: str) -> str:
    """The BASE of the whole host: of a slot the one it lies in, else ``base`` itself."""
    above, name = os.path.split(os.path.dirname(base))
    return above if name == "slots" and SLOT.match(os.path.basename(base)) else base


def slot_gpus(base: str) -> Optional[set[str]]:
    """The GPUs of a slot, by its name; None for the whole host."""
    return None if host_base(base) == base else set(os.path.basename(base).split("-"))


def with_slots(base: str) -> list[str]:
    """``base`` and, where it is the whole host, every slot below it."""
    top = os.path.join(base, "slots")
    try:
        return [base, *[os.path.join(top, name) for name in sorted(os.listdir(top)) if SLOT.match(name)]]
    except OSError:
        return [base]


def rivals(base: str) -> list[str]:
    """Other places of this host whose GPUs might be the same."""
    mine = slot_gpus(base)
    found = []
    for place in with_slots(host_base(base)):
        theirs = slot_gpus(place)
        if place != base and (mine is None or theirs is None or mine & theirs):
            found.append(place)
    return found


@contextlib.contextmanager
def locked(base: str) -> Iterator[int]:
    """Hold the host's lock. Nothing that waits for a server may happen inside."""
    os.makedirs(base, mode=0o700, exist_ok=True)
    descriptor = os.open(os.path.join(host_base(base), "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------------------------------------ the lease


def lease_path(base: str) -> str:
    return os.path.join(base, "lease.json")


def lease_left(lease: Optional[State]) -> float:
    """Seconds until the lease is over; 0 when it is over, released, or from before a reboot."""
    if lease is None or lease.get("released") or lease.get("boot_id") != boot_id():
        return 0.0
    return max(0.0, float(lease["renewed"] + lease["lease_s"] - boottime()))


def check_epoch(base: str, request: State) -> State:
    """Refuse whoever is not the present owner. To be called with the lock held."""
    lease = read_json(lease_path(base))
    if lease is None or lease.get("released") or lease["epoch"] != request["epoch"]:
        holder = (lease or {}).get("owner") or {}
        raise Refused("superseded", "this host is no longer ours (our epoch is %s)" % request["epoch"], holder=holder)
    return lease


def cmd_acquire(base: str, request: State) -> State:
    """Become the owner. ``takeover`` holds the tokens of holders that the caller has seen to be dead."""
    with locked(base):
        others = rivals(base)
        for place in [base, *others]:
            lease = read_json(lease_path(place))
            left = lease_left(lease)
            if lease is not None and left > 0 and lease["token"] not in request["takeover"]:
                more = {"holder": lease["owner"], "token": lease["token"], "lease_left_s": left}
                raise Refused("busy", "held", same_place=place == base, **more)
        for place in others:
            lease = read_json(lease_path(place))
            if lease_left(lease) > 0:
                write_json(lease_path(place), dict(lease or {}, released=True))
        lease = read_json(lease_path(base))
        epoch = max(lease["epoch"] + 1 if lease else 1, request["owner"].get("epoch", 1))
        token = binascii.hexlify(os.urandom(8)).decode()
        lease = {"owner": request["owner"], "epoch": epoch, "token": token, "lease_s": request["lease_s"]}
        lease.update(renewed=boottime(), boot_id=boot_id(), released=False)
        write_json(lease_path(base), lease)
        return {"epoch": epoch, "token": token}


def cmd_renew(base: str, request: State) -> State:
    with locked(base):
        lease = check_epoch(base, request)
        lease.update(renewed=boottime(), boot_id=boot_id())
        write_json(lease_path(base), lease)
        return {}


def cmd_release(base: str, request: State) -> State:
    """Give the host back. Servers that still run end themselves."""
    with locked(base):
        lease = check_epoch(base, request)
        write_json(lease_path(base), dict(lease, released=True))
        return {}


def cmd_holder(base: str, request: State) -> State:
    """Who keeps others from becoming the owner; None where nobody does."""
    for place in [base, *rivals(base)]:
        lease = read_json(lease_path(place))
        left = lease_left(lease)
        if lease is not None and left > 0:
            return {"holder": lease["owner"], "lease_left_s": left}
    return {"holder": None, "lease_left_s": 0.0}


# ------------------------------------------------------------------------------------------------ processes


def read_proc(pid: int) -> Optional[State]:
    """A process's pid, start (clock ticks since boot), ppid, pgid, sid and name; None where gone or a zombie."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as handle:
            data = handle.read()
    except OSError:
        return None
    head, _, tail = data.rpartition(b")")  # the name may hold spaces and brackets
    fields = tail.split()
    if not fields or fields[0] in (b"Z", b"X"):
        return None
    comm = head.partition(b"(")[2].decode("utf-8", "replace")
    return {
        "pid": pid,
        "start": int(fields[19]),
        "ppid": int(fields[1]),
        "pgid": int(fields[2]),
        "sid": int(fields[3]),
        "comm": comm,
    }


def scan() -> dict[int, State]:
    """All live processes by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            proc = read_proc(int(name))
            if proc is not None:
                found[proc["pid"]] = proc
    return found


def same(identity: Optional[State]) -> bool:
    """True while the very process (pid and start time) is alive."""
    if not identity:
        return False
    proc = read_proc(identity["pid"])
    return proc is not None and proc["start"] == identity["start"]


def environment(pid: int) -> dict[str, str]:
    """Marker and base folder in a process's environment, as a dict; empty where it may not be read."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as handle:
            data = handle.read()
    except OSError:
        return {}
    if MARKER.encode() not in data:
        return {}
    pairs = (item.partition(b"=") for item in data.split(b"\0"))
    return {
        key.decode(): os.fsdecode(value) for key, _, value in pairs if key in (b"SPECSWEEP_MARKER", b"SPECSWEEP_BASE")
    }


def cgroup_pids(path: Optional[str]) -> list[int]:
    return [int(line) for line in slurp(os.path.join(path, "cgroup.procs")).split()] if path else []


def ours(state: State, procs: Optional[dict[int, State]] = None) -> list[State]:
    """Live processes of one launch, by record, descent, marker and cgroup; never the supervisor or ourselves."""
    procs = scan() if procs is None else procs
    seeds = set(cgroup_pids(state.get("cgroup")))
    for identity in [state.get("server")] + state["processes"]:
        if identity and identity["pid"] in procs and procs[identity["pid"]]["start"] == identity["start"]:
            seeds.add(identity["pid"])
    server = state.get("server")
    if server and server["pid"] in seeds:  # only while the leader is the right one: group numbers are used again
        seeds.update(p["pid"] for p in procs.values() if server["pid"] in (p["pgid"], p["sid"]))
    seeds.update(pid for pid in procs if environment(pid).get(MARKER) == state["marker"])
    supervisor = state["supervisor"]
    parents = set(seeds)
    if supervisor["pid"] in procs and procs[supervisor["pid"]]["start"] == supervisor["start"]:
        parents.add(supervisor["pid"])
    children: dict[int, list[int]] = {}
    for proc in procs.values():
        children.setdefault(proc["ppid"], []).append(proc["pid"])
    todo = list(parents)
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in parents:
                parents.add(child)
                todo.append(child)
    return [procs[pid] for pid in sorted(parents - {supervisor["pid"], os.getpid()}) if pid in procs]


def send(proc: State, number: int) -> None:
    """Signal exactly this process: through a pidfd where Python has one, else after one more look."""
    opener = getattr(os, "pidfd_open", None)
    try:
        descriptor = opener(proc["pid"]) if opener else None
    except OSError:
        descriptor = None
    try:
        if same(proc):
            if descriptor is None:
                os.kill(proc["pid"], number)
            else:
                signal.pidfd_send_signal(descriptor, number)
    except OSError:
        pass  # gone meanwhile, or not permitted: the next look tells which
    finally:
        if descriptor is not None:
            os.close(descriptor)


def send_group(state: State, number: int) -> None:
    server = state.get("server")
    if server and same(server) and server["pid"] != os.getpgrp():
        with contextlib.suppress(OSError):
            os.killpg(server["pid"], number)


def end_processes(state: State, grace: Callable[[], float], reap: Callable[[], None] = lambda: None) -> list[int]:
    """TERM to the group, wait, KILL to everything that is ours until nothing is left.

    ``grace()`` gives the seconds that TERM is granted, asked again and again so that it can be cut short.
    Returns the pids that would not die within KILL_DEADLINE_S.
    """
    begun = time.monotonic()
    if same(state.get("server")):
        send_group(state, signal.SIGTERM)
        while same(state["server"]) and time.monotonic() < begun + grace():
            reap()
            time.sleep(0.02)  # a process group has no descriptor to wait on, and pidfds need Python 3.9
        reap()
    granted = time.monotonic() + (0.0 if same(state.get("server")) else STRAGGLERS_S)
    left = ours(state)
    while left and time.monotonic() < granted:
        time.sleep(0.05)  # these need not be our children: their end is seen in /proc alone
        reap()
        left = ours(state)
    deadline = time.monotonic() + KILL_DEADLINE_S
    empty = 0
    while empty < 2 and time.monotonic() < deadline:
        send_group(state, signal.SIGKILL)
        for proc in left:
            send(proc, signal.SIGKILL)
        time.sleep(0.02)  # what SIGKILL takes
        reap()
        left = ours(state)
        empty = 0 if left else empty + 1  # twice, for a child forked while we looked
    return [proc["pid"] for proc in left]


# ------------------------------------------------------------------------------------------------ containers


def containers(state: State) -> list[str]:
    """Ids of the launch's containers, running or not; none where it was started without docker, and NO_ANSWER alone
    where docker does not say."""
    if not state.get("docker"):
        return []
    label = "label=%s=%s" % (LABEL, state["marker"])
    status, out, err = query([state["docker"], "ps", "--all", "--quiet", "--filter", label])
    if status != 0:
        sys.stderr.write("docker ps: status %d: %s\n" % (status, err.strip()[-500:]))
    return out.split() if status == 0 else [NO_ANSWER]


def container_pids(state: State) -> list[int]:
    """Pids, as the host numbers them, of the processes in the launch's containers."""
    pids: list[int] = []
    for container in containers(state):
        if container == NO_ANSWER:
            continue
        _, out, _ = query([state["docker"], "top", container, "-eo", "pid"])
        pids += [int(word) for word in out.split() if word.isdigit()]
    return pids


def end_containers(state: State, grace_s: float) -> list[str]:
    """Stop and remove the launch's containers; returns the ids of those that are still there."""
    ids = containers(state)
    if not ids or ids == [NO_ANSWER]:
        return ids
    query([state["docker"], "stop", "--time", str(int(grace_s)), *ids], grace_s + KILL_DEADLINE_S)
    query([state["docker"], "rm", "--force", *ids], KILL_DEADLINE_S)
    return containers(state)


# ------------------------------------------------------------------------------------------------ the server's log


class Masker:
    """Replaces secrets in a stream of bytes, also where one is split over two reads."""

    def __init__(self, secrets: list[str]) -> None:
        self.secrets = sorted((s.encode() for s in secrets if len(s) >= MIN_SECRET), key=len, reverse=True)
        self.held = b""

    def feed(self, data: bytes) -> bytes:
        data = self.held + data
        for secret in self.secrets:
            data = data.replace(secret, b"***")
        keep = 0
        for secret in self.secrets:
            for size in range(min(len(secret) - 1, len(data)), keep, -1):
                if data.endswith(secret[:size]):
                    keep = size
                    break
        cut = len(data) - keep
        self.held = data[cut:]
        return data[:cut]

    def flush(self) -> bytes:
        data, self.held = self.held, b""
        return data


class Log:
    """The server's output on disk in pieces of SEGMENT bytes. A full disk loses output, never stops the server."""

    def __init__(self, folder: str, secrets: list[str]) -> None:
        self.folder = folder
        self.masker = Masker(secrets)
        self.size = 0  # bytes written so far = the reader's next offset
        self.first = 0  # the oldest byte after the first piece that is still there
        self.dropped = 0
        self.retry_at = 0.0
        self.handle: Optional[int] = None

    def path(self, number: int) -> str:
        return os.path.join(self.folder, "server.log" if number == 0 else "server.log.%d" % number)

    def write(self, data: bytes) -> None:
        while data:
            number, used = divmod(self.size, SEGMENT)
            try:
                if time.monotonic() < self.retry_at:
                    raise OSError(errno.ENOSPC, "waiting for space")
                if self.handle is None:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                    self.handle = os.open(self.path(number), flags, 0o600)
                written = os.write(self.handle, data[: SEGMENT - used])
            except OSError:
                self.dropped += len(data)
                self.retry_at = max(self.retry_at, time.monotonic() + 1.0)
                return
            self.size += written
            data = data[written:]
            if self.size % SEGMENT == 0:
                os.close(self.handle)
                self.handle = None
                oldest = self.size // SEGMENT - KEEP_SEGMENTS + 1
                if oldest >= 1:
                    self.first = (oldest + 1) * SEGMENT
                    with contextlib.suppress(OSError):
                        os.unlink(self.path(oldest))

    def drain(self, pipe: int) -> None:
        """Thread: copy until every writer has closed the pipe."""
        while True:
            if self.masker.held and not select.select([pipe], [], [], HOLD_S)[0]:
                self.write(self.masker.flush())
            data = os.read(pipe, 1 << 20)
            if not data:
                break
            self.write(self.masker.feed(data))
        self.write(self.masker.flush())


# ------------------------------------------------------------------------------------------------ the supervisor


def libc_prctl(option: int, value: int) -> None:
    """prctl(2): 1 is PR_SET_PDEATHSIG, 36 is PR_SET_CHILD_SUBREAPER."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def make_cgroup(name: str) -> Optional[str]:
    """A cgroup (v2) of our own below the present one where that is allowed, else None."""
    relative = [line[3:] for line in slurp("/proc/self/cgroup").splitlines() if line.startswith("0::")]
    table = [line.split() for line in slurp("/proc/self/mounts").splitlines()]
    mounts = [fields[1] for fields in table if len(fields) > 2 and fields[2] == "cgroup2"]
    if not relative or not mounts:
        return None
    path = os.path.join(mounts[0], relative[0].strip("/"), name)
    try:
        os.mkdir(path)
    except OSError:
        return None
    return path


def exec_server(argv: list[str], env: dict[str, str], output: int, cgroup: Optional[str], parent: int) -> NoReturn:
    """In the forked child: become the server. Does not return."""
    try:
        os.setsid()
        libc_prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        if cgroup:
            with contextlib.suppress(OSError), open(os.path.join(cgroup, "cgroup.procs"), "w") as handle:
                handle.write("0")
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, 4096)
        os.chdir(env.get("HOME", "/") if os.path.isdir(env.get("HOME", "/")) else "/")
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(2, ("specsweep: cannot run %s: %s\n" % (argv[0], error.strerror)).encode("utf-8", "replace"))
        os._exit(127)
    finally:
        os._exit(126)


class Supervisor:
    """Lives as long as its server. All files are written by the main thread except the log."""

    def __init__(self, base: str, folder: str, state: State, secrets: list[str]) -> None:
        self.base = base
        self.folder = folder
        self.state = state
        self.log = Log(folder, secrets)
        self.waits: dict[int, int] = {}  # pid -> wait status of reaped children
        self.asked = False  # SIGTERM: end the server
        self.recorded = False  # state.json was written at least once
        self.lease_seen = boottime()

    def save(self) -> None:
        self.state.update(log_size=self.log.size, log_first=self.log.first, log_dropped=self.log.dropped)
        path = os.path.join(self.folder, "state.json")
        try:
            write_json(path, self.state)
            self.recorded = True
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                with contextlib.suppress(OSError):  # the reserve was kept for this moment
                    self.log.retry_at = time.monotonic() + 10.0
                    os.unlink(os.path.join(self.folder, "reserve"))
                    write_json(path, self.state)
                    self.recorded = True

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.waits[pid] = status

    def spawn(self, argv: list[str], env: dict[str, str]) -> None:
        """Start the server and record it; OSError where it could not be recorded, and then it is ended again."""
        import threading

        read_end, write_end = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(write_end, 1031, 1 << 20)  # F_SETPIPE_SZ: a burst of log lines never waits for us
        cgroup = make_cgroup("specsweep-%s-%d" % (self.state["epoch"], os.getpid()))
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            exec_server(argv, env, write_end, cgroup, me)
        os.close(write_end)
        proc = read_proc(pid) or {"start": 0}
        self.state.update(server={"pid": pid, "start": proc["start"]}, cgroup=cgroup, started=time.time())
        self.save()
        self.reader = threading.Thread(target=self.log.drain, args=(read_end,), daemon=True)
        self.reader.start()
        if not self.recorded:  # nobody could stop it
            self.finish(pid, "unrecorded")
            raise OSError("the launch's record cannot be written to %s" % self.folder)

    def look(self) -> bool:
        """Record descendants; returns True when that changed the record."""
        procs = scan()
        children: dict[int, list[State]] = {}
        for proc in procs.values():
            children.setdefault(proc["ppid"], []).append(proc)
        found: list[State] = []
        todo = [os.getpid()]
        while todo:
            for proc in children.get(todo.pop(), ()):
                found.append({"pid": proc["pid"], "start": proc["start"], "comm": proc["comm"]})
                todo.append(proc["pid"])
        found.sort(key=lambda proc: proc["pid"])
        changed = bool(found != self.state["processes"])
        self.state["processes"] = found
        return changed

    def why_end(self) -> Optional[str]:
        """A reason to end the server now, or None."""
        if self.asked:
            return "stopped"
        lease = read_json(lease_path(self.base))
        now = boottime()
        if lease is not None:
            if lease.get("released"):
                return "released"
            if lease_left(lease) > 0:
                self.lease_seen = now
                return None
        # A lease that is unreadable for a moment (folder being replaced) is not a dead controller.
        over = lease is not None or now - self.lease_seen > self.state["lease_s"]
        return "lease_expired" if over else None

    def grace(self) -> float:
        if not self.recorded:
            return 0.0  # it has only just begun, and whoever asked for it waits
        request = read_json(os.path.join(self.folder, "stop.json")) or {}
        return float(request.get("grace_s", 10.0))

    def run(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "asked", True))
        server = self.state["server"]["pid"]
        begun = time.monotonic()
        next_look = next_lease = 0.0
        reason = None
        while reason is None:
            self.reap()
            now = time.monotonic()
            if server in self.waits:
                reason = "exited"
                break
            changed = self.log.first != self.state["log_first"]
            changed = changed or bool(self.log.dropped and not self.state["log_dropped"])
            if now >= next_look:
                next_look = now + (0.5 if now - begun < 60 else 5.0)  # a scan of /proc costs about 10 ms
                changed = self.look() or changed
            if now >= next_lease or self.asked:
                next_lease = now + 0.5
                reason = self.why_end()
            if changed:
                self.save()
            if reason is None:
                select.select([wake_read], [], [], 0.5)
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
        self.finish(server, reason)

    def finish(self, server: int, reason: str) -> None:
        self.state["reason"] = reason
        if reason == "exited":
            self.note_exit(server)
        left = end_processes(self.state, self.grace, self.reap)
        self.state["containers_left"] = end_containers(self.state, 0.0)  # docker run has handed on TERM, and waited
        self.note_exit(server)
        self.reader.join(2.0)
        self.state.update(processes=[], left=left, ended=self.state.get("ended") or time.time())
        self.state["finished"] = not self.state["containers_left"]  # else whoever asks next tries again
        remove_files(self.folder, self.state)
        if self.state["cgroup"]:
            with contextlib.suppress(OSError):
                os.rmdir(self.state["cgroup"])
        self.save()

    def note_exit(self, server: int) -> None:
        if server in self.waits and self.state.get("exit_code") is None:
            status = self.waits[server]
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            self.state.update(exit_code=code, ended=time.time())
            self.save()


# ------------------------------------------------------------------------------------------------ launches


def read_state(folder: str) -> Optional[State]:
    """A launch's record. After a reboot its pids belong to others: such a record names no process any more."""
    state = read_json(os.path.join(folder, "state.json"))
    if state is not None and state["boot_id"] != boot_id():
        nobody = {"pid": 0, "start": 0}
        state.update(supervisor=nobody, server=nobody, processes=[], left=[], cgroup=None)
    return state


def remove_files(folder: str, state: State) -> None:
    """What a launch asked for (its API key) and the room kept for its record, once its server has ended."""
    for name in [*state.get("files", ()), "reserve"]:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, name))


def run_folders(base: str) -> list[tuple[str, Optional[State]]]:
    """(folder, state) of every launch; None where it left no record."""
    top = os.path.join(base, "runs")
    try:
        folders = [os.path.join(top, name) for name in sorted(os.listdir(top))]
    except OSError:
        return []
    return [(folder, read_state(folder)) for folder in folders if os.path.isdir(folder)]


def runs(base: str) -> list[tuple[str, State]]:
    """(folder, state) of every launch that left a record."""
    return [(folder, state) for folder, state in run_folders(base) if state]


def run_folder(base: str, request: State) -> str:
    """The folder of the launch that a request names by study, launch and epoch."""
    return os.path.join(base, "runs", "%s.%s.%d" % (request["study"], request["launch"], request["epoch"]))


def free_port(base: str) -> int:
    """A port nobody listens on and no other launch of ours has been promised."""
    import socket

    places = with_slots(host_base(base))
    promised = {state["port"] for place in places for _, state in runs(place) if not state["finished"]}
    for _ in range(200):
        port = PORTS[0] + int.from_bytes(os.urandom(4), "big") % (PORTS[1] - PORTS[0])
        if port in promised:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("0.0.0.0", port))  # bound for a moment, never listening: is it taken on any address?
                return port
            except OSError:
                continue
    raise Refused("failed", "no free port between %d and %d" % PORTS)


def substitute(text: str, words: dict[str, str]) -> str:
    return re.sub("|".join(words), lambda match: words[match.group()], text)


def cmd_start(base: str, request: State) -> State:
    """Start a server; answers as soon as it is running. The same launch asked for again is answered again."""
    for part in (request["study"], request["launch"]):
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", part) or part.startswith("."):
            raise Refused("failed", "not a name for a folder: %r" % part)
    for name in request["files"]:
        if os.path.basename(name) != name:
            raise Refused("failed", "a launch's file must be a plain name, not %r" % name)
    folder = run_folder(base, request)
    with locked(base) as lock:
        lease = check_epoch(base, request)
        known = read_state(folder)
        if known is not None:
            return {"state": known, "folder": folder}
        # Who starts a server lives: without this, a lease from before a reboot or an outage would end it at once.
        lease.update(renewed=boottime(), boot_id=boot_id())
        write_json(lease_path(base), lease)
        tidy(base)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        port = free_port(base)
        random_part = binascii.hexlify(os.urandom(4)).decode()
        marker = "%s/%s/%d/%s" % (request["study"], request["launch"], request["epoch"], random_part)
        words = {"@PORT@": str(port), "@DIR@": folder, "@PYTHON@": request["python"], "@BASE@": base}
        words["@MARKER@"] = marker
        try:
            for name, content in request["files"].items():
                write_file(os.path.join(folder, name), binascii.a2b_base64(content))
            write_file(os.path.join(folder, "reserve"), b"\0" * 65536)
        except OSError:  # a full disk: no key stays behind without a record that says so
            remove_files(folder, request)
            raise
        env = dict(os.environ)
        env.update({key: substitute(value, words) for key, value in request["env"].items()})
        env.update(request["secret_env"])
        env.update({MARKER: marker, BASE_VARIABLE: base, "SPT_NOENV": "1"})
        argv = [substitute(arg, words) for arg in request["argv"]]
        state = {
            "study": request["study"],
            "launch": request["launch"],
            "epoch": request["epoch"],
            "marker": marker,
            "port": port,
            "docker": request.get("docker"),
            "files": sorted(request["files"]),
            "argv": argv,
            "boot_id": boot_id(),
            "lease_s": lease["lease_s"],
            "supervisor": None,
            "server": None,
            "processes": [],
            "cgroup": None,
            "started": None,
            "ended": None,
            "exit_code": None,
            "reason": None,
            "finished": False,
            "left": [],
            "log_size": 0,
            "log_first": 0,
            "log_dropped": 0,
        }
        secrets = list(request["secrets"]) + list(request["secret_env"].values())
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(lock)  # the lock goes with the last descriptor: the supervisor must not hold it
            os.close(read_end)
            supervise(base, folder, state, secrets, argv, env, write_end)
        os.close(write_end)
        os.waitpid(child, 0)
        with os.fdopen(read_end, "rb") as pipe:  # ends when the server exists and is recorded, or the supervisor died
            complaint = pipe.read().decode("utf-8", "replace")
        recorded = read_state(folder)
        if complaint or recorded is None:
            remove_files(folder, state)
            raise Refused("failed", "the supervisor died: %s" % (complaint or "see %s/supervisor.log" % folder))
    return {"state": recorded, "folder": folder}


def supervise(
    base: str,
    folder: str,
    state: State,
    secrets: list[str],
    argv: list[str],
    env: dict[str, str],
    report: int,
) -> NoReturn:
    """In the child of ``start``: detach, start the server, tell ``start``, stay until it has ended. No return.

    ``report`` is closed once the server is recorded; what keeps it from that is written there first.
    """
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        null = os.open(os.devnull, os.O_RDWR)
        notes = os.open(os.path.join(folder, "supervisor.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for target, source in ((0, null), (1, notes), (2, notes)):
            os.dup2(source, target)
        os.chdir("/")
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        libc_prctl(36, 1)
        me = read_proc(os.getpid())
        assert me is not None  # we are alive
        state["supervisor"] = {"pid": me["pid"], "start": me["start"]}
        supervisor = Supervisor(base, folder, state, secrets)
        supervisor.spawn(argv, env)
        os.close(report)
        report = -1
        supervisor.run()
    except BaseException as error:  # noqa: BLE001 -- the last frame of a detached process: what is not said here is lost
        import traceback

        with contextlib.suppress(OSError):  # closed where the server had been started
            os.write(report, (str(error) or type(error).__name__).encode("utf-8", "replace"))
        with contextlib.suppress(OSError):  # a full disk
            traceback.print_exc()
            sys.stderr.flush()
    finally:
        os._exit(0)


def end_runs(pairs: list[tuple[str, State]], grace_s: float) -> list[State]:
    """End several launches at once: their supervisors do it; where one is dead we do."""
    for folder, state in pairs:
        with contextlib.suppress(OSError):
            write_json(os.path.join(folder, "stop.json"), {"grace_s": grace_s})
        if same(state["supervisor"]):
            send(state["supervisor"], signal.SIGTERM)
    reports = []
    for folder, state in pairs:
        path = os.path.join(folder, "state.json")
        deadline = time.monotonic() + grace_s + STRAGGLERS_S + KILL_DEADLINE_S + 5.0
        while same(state["supervisor"]) and time.monotonic() < deadline:
            time.sleep(0.02)  # the supervisor is no child of this process
        state = read_state(folder) or state
        if not state["finished"]:
            if same(state["supervisor"]):
                send(state["supervisor"], signal.SIGKILL)
            left = end_processes(state, lambda: grace_s)
            state["containers_left"] = end_containers(state, grace_s)
            remove_files(folder, state)
            state.update(processes=[], left=left, ended=time.time(), reason=state["reason"] or "supervisor_lost")
            state["finished"] = not state["containers_left"]  # else the next controller tries again
            with contextlib.suppress(OSError):
                write_json(path, state)
        reports.append(state)
    return reports


def cmd_stop(base: str, request: State) -> State:
    """End one launch, of this ``folder`` or, where only its name is known, of this owner; say what is left of it."""
    with locked(base):  # a start of it that is still under way comes first
        check_epoch(base, request)
    folder = request["folder"] or run_folder(base, request)
    state = read_state(folder)
    if state is None:
        raise Refused("failed", "no record of this launch in %s" % folder)
    pids = [proc["pid"] for proc in state["processes"]] + container_pids(state)
    if not state["finished"]:
        state = end_runs([(folder, state)], request["grace_s"])[0]
    left = [proc["pid"] for proc in ours(state)]
    reply = {"exit_code": state["exit_code"], "reason": state["reason"], "left": left, "pids": pids}
    return dict(reply, containers_left=state.get("containers_left") or [])


def found(bases: list[str]) -> list[tuple[Optional[str], State, list[State]]]:
    """What of ours is there: recorded launches with live processes, then marked processes without a record."""
    procs = scan()
    entries: list[tuple[Optional[str], State, list[State]]] = []
    claimed: set[int] = set()
    for folder, state in [run for base in bases for run in runs(base)]:
        alive = ours(state, procs)
        claimed.update(proc["pid"] for proc in alive)
        if alive or same(state["supervisor"]) or (not state["finished"] and containers(state)):
            entries.append((folder, state, alive))
    strays: dict[str, list[State]] = {}
    for pid, proc in procs.items():
        variables = environment(pid)
        if pid not in claimed and variables.get(BASE_VARIABLE) in bases and pid != os.getpid():
            strays.setdefault(variables[MARKER], []).append(proc)
    for marker, members in sorted(strays.items()):
        study, launch, epoch = [*marker.split("/"), "?", "?"][:3]
        state = {"study": study, "launch": launch, "epoch": int(epoch) if epoch.isdigit() else 0, "marker": marker}
        state.update(supervisor={"pid": 0, "start": 0}, server=None, processes=[], cgroup=None, boot_id=boot_id())
        state.update(port=None, started=None, finished=True)
        entries.append((None, state, members))
    return entries


def described(folder: Optional[str], state: State, alive: list[State]) -> State:
    server = state.get("server") or (alive[0] if alive else None)
    return {
        "study": state["study"],
        "launch": state["launch"],
        "epoch": state["epoch"],
        "marker": state["marker"],
        "folder": folder,
        "port": state["port"],
        "started": state["started"],
        "pid": server["pid"] if server else 0,
        "supervised": same(state["supervisor"]),
        "server_alive": same(state.get("server")),
        "processes": [{"pid": p["pid"], "ppid": p["ppid"], "pgid": p["pgid"], "comm": p["comm"]} for p in alive],
        "state": state if folder else None,
    }


def cmd_ps(base: str, request: State) -> State:
    return {"found": [described(*entry) for entry in found(with_slots(base))]}


def cmd_end(base: str, request: State) -> State:
    """End everything of ours on these GPUs, of whichever study."""
    with locked(base):
        check_epoch(base, request)
        places = [base, *rivals(base)]
        entries = found(places)
    ended = [described(*entry) for entry in entries]
    recorded = [(folder, state) for folder, state, _ in entries if folder]
    here = {folder for folder, _, _ in entries}
    for folder, state in [run for place in places for run in runs(place)]:
        if folder not in here and not state["finished"]:  # the host was rebooted, or all of it was killed
            recorded.append((folder, state))
    reports = end_runs(recorded, request["grace_s"])
    boxes = ["%s of %s" % (box, state["marker"]) for state in reports for box in state.get("containers_left") or ()]
    left: list[int] = []
    for _, state, _ in entries:
        left.extend(end_processes(state, lambda: 0.0))
    with locked(base):
        tidy(base)
    return {"ended": ended, "left": left, "containers_left": boxes}


def tidy(base: str) -> None:
    """Remove the folders of old launches, all but the newest KEEP_RUNS that have ended. With the lock held.

    A launch without a record ended, or never began, when its folder last changed, unless a process still uses it.
    """
    import shutil

    done: list[tuple[float, str, bool]] = []
    for folder, state in run_folders(base):
        if state is None:
            with contextlib.suppress(OSError):
                done.append((os.stat(folder).st_mtime, folder, False))
        elif state["finished"] and not state["left"]:
            done.append((state["ended"] or 0.0, folder, True))
    old = sorted(done)[:-KEEP_RUNS]
    used = set() if all(recorded for _, _, recorded in old) else used_folders(base)
    for _, folder, _ in old:
        if folder not in used:
            shutil.rmtree(folder, ignore_errors=True)


def used_folders(base: str) -> set[str]:
    """Folders of launches that live processes belong to: supervisors by their open log, servers by their marker."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                found.add(os.path.dirname(os.readlink("/proc/%s/fd/2" % name)))
            marker = environment(int(name)).get(MARKER)
            if marker:
                found.add(os.path.join(base, "runs", ".".join(marker.split("/")[:3])))
    return found


# ------------------------------------------------------------------------------------------------ questions


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def cmd_facts(base: str, request: State) -> State:
    os.makedirs(base, mode=0o700, exist_ok=True)
    disk = os.statvfs(base)
    return {
        "hostname": os.uname().nodename,
        "user": user_name(os.getuid()),
        "machine_id": slurp("/etc/machine-id").strip() or os.uname().nodename,
        "boot_id": boot_id(),
        "python": sys.executable,
        "python_version": "%d.%d.%d" % sys.version_info[:3],
        "disk_free_mib": disk.f_bavail * disk.f_frsize // (1 << 20),
        "free_port": free_port(base),
    }


def query(argv: list[str], timeout_s: float = 20.0) -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of a short command; 127 where it does not exist, 124 where it hangs."""
    import subprocess

    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s)
    except OSError as error:
        return 127, "", str(error)
    except subprocess.TimeoutExpired:
        return 124, "", "no answer in %g s" % timeout_s
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def cmd_gpus(base: str, request: State) -> State:
    """The answers of nvidia-smi, who the processes of the compute list (its second column) are, and where the program
    lies: what is on the PATH here may be so because of the host's `activate`, which costs too much once a second."""
    answers: list[State] = []
    for option in request["options"]:
        status, out, err = query(request["gpu_query"] + [option, "--format=csv,noheader,nounits"])
        answers.append({"status": status, "out": out, "err": err.strip()[-500:]})
    entries = found(with_slots(base))
    mine = {proc["pid"] for _, _, alive in entries for proc in alive}
    mine.update(pid for _, state, _ in entries for pid in container_pids(state))
    who = {}
    for line in answers[-1]["out"].splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) > 1 and fields[1].isdigit():
            pid = int(fields[1])
            proc = read_proc(pid)
            try:
                user = user_name(os.stat("/proc/%d" % pid).st_uid)
            except OSError:
                user = None
            who[str(pid)] = {"user": user, "comm": proc["comm"] if proc else None, "ours": pid in mine}
    return {"answers": answers, "who": who, "program": which(request["gpu_query"][0])}


def which(name: str) -> str:
    """The program's path; the name itself where it is none of the PATH's."""
    if os.sep not in name:
        for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
            path = os.path.join(folder, name)
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path
    return name


def cmd_models(base: str, request: State) -> State:
    """Per path or hub name: does the host have it, its config.json (text), and names and bytes of its files of weights?
    Looks into the hub cache, offline."""
    cache = os.environ.get("HF_HUB_CACHE") or os.path.join(
        os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface"), "hub"
    )
    answers: dict[str, State] = {}
    for path in request["paths"]:
        folder = os.path.expanduser(path)
        if not os.path.isdir(folder):
            repository = os.path.join(cache, "models--" + path.strip("/").replace("/", "--"))
            revision = slurp(os.path.join(repository, "refs", "main")).strip()
            folder = os.path.join(repository, "snapshots", revision) if revision else ""
        exists = bool(folder) and os.path.isdir(folder)
        answers[path] = {"folder": folder if exists else None, "config": None, "weights": []}
        if exists:
            answers[path].update(config=slurp(os.path.join(folder, "config.json")) or None, weights=weights(folder))
    return {"models": answers}


def weights(folder: str) -> list[tuple[str, int]]:
    """Name and bytes of each file of weights, links followed."""
    found = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            if name.endswith(WEIGHTS):
                found.append((name, os.stat(os.path.join(folder, name)).st_size))
    return found


def cmd_flood(base: str, request: State) -> State:
    """Serve ``connections`` on loopback with chunks for a while, then end; answers with the port.

    ``rate`` is chunks per second and connection, each sent by itself; None sends as fast as they are taken.
    """
    import socket

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    port = listener.getsockname()[1]
    if os.fork():
        return {"port": port}
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for target in (0, 1, 2):
            os.dup2(null, target)
        signal.alarm(int(request["seconds"]) + 10)
        connections = [listener.accept()[0] for _ in range(request["connections"])]
        for connection in connections:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        chunk = b"x" * request["chunk_bytes"]
        begun = time.monotonic()
        rounds = 0
        while time.monotonic() < begun + request["seconds"]:
            for connection in connections:
                connection.sendall(chunk)
            rounds += 1
            if request["rate"]:
                time.sleep(max(0.0, begun + rounds / request["rate"] - time.monotonic()))  # until the next chunk is due
        for connection in connections:
            connection.close()
    finally:
        os._exit(0)


COMMANDS: dict[str, Callable[[str, State], State]] = {
    "acquire": cmd_acquire,
    "renew": cmd_renew,
    "release": cmd_release,
    "holder": cmd_holder,
    "start": cmd_start,
    "stop": cmd_stop,
    "ps": cmd_ps,
    "end": cmd_end,
    "facts": cmd_facts,
    "gpus": cmd_gpus,
    "models": cmd_models,
    "flood": cmd_flood,
}


def main(argv: list[str]) -> None:
    """``argv``: anything, command, base folder."""
    command, base = argv[1], os.path.realpath(argv[2])
    os.umask(0o077)
    request = json.loads(sys.stdin.buffer.read().decode("utf-8") or "{}")
    try:
        reply = dict(COMMANDS[command](base, request), ok=True)
    except Refused as refused:
        reply = refused.reply
    except OSError as error:
        reply = {"ok": False, "kind": "failed", "message": "%s: %s" % (command, error)}
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv)
