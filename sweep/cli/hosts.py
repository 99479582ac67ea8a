"""doctor: can a study run here and there? ps and clean: what of ours is on a host, and its end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from sweep.cli.common import db_option, json_option, print_json
from sweep.errors import HostError, UsageError

if TYPE_CHECKING:
    from launchers.servers import Found, HostServers
    from sweep.cli.check import Check
    from sweep.config import Host, StudySpec

MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


def space_option(function: Any) -> Any:
    return click.option("--space", metavar="YAML", help="Take HOST from the hosts of this search space.")(function)


@click.command()
@click.argument("space", metavar="[YAML]", required=False)
@click.option("--host", "names", multiple=True, help="Check this host (name in the YAML, ssh alias, local).")
@db_option
@json_option
def doctor(space: str | None, names: tuple[str, ...], db_url: str, as_json: bool) -> None:
    """Check this installation, the hosts of a search space or those named, their GPUs, engine and models.

    Ends with exit code 7 when something keeps a study from running.
    """
    from sweep.cli import host_checks
    from sweep.cli.host_comparison import compared
    from sweep.cli.installation import installation, secrets
    from sweep.ray_address import configured

    spec, hosts = _hosts(space, names)
    here = [*installation(db_url, configured(spec.ray.address if spec is not None else None)), *secrets(spec)]
    there = host_checks.check_hosts(hosts, spec)
    across = compared(there, spec)
    bad = [looked.host.name for looked in there if _failed(looked.checks)]
    if as_json:
        found = [
            {
                "name": looked.host.name,
                "kind": looked.host.kind,
                "ok": looked.host.name not in bad,
                "checks": [check.as_dict() for check in looked.checks],
            }
            for looked in there
        ]
        ok = not bad and not _failed(here)
        simulated = bool(spec and spec.simulated)
        print_json(
            {
                "ok": ok,
                "simulated": simulated,
                "installation": [check.as_dict() for check in here],
                "hosts": found,
                "across_hosts": [check.as_dict() for check in across],
            }
        )
    else:
        if spec is not None and spec.simulated:
            click.echo("simulated engine: no real server will run on these hosts")
        _print("this installation", here)
        for looked in there:
            _print(f"host {looked.host.name}", looked.checks)
        if across:
            _print("hosts beside each other", across)
    if bad:
        raise HostError(f"{len(bad)} of {len(hosts)} hosts cannot be used: {', '.join(bad)}")
    if wrong := [check.name for check in here if check.status == "fail"]:
        raise HostError(f"this installation is not in order: {', '.join(wrong)}")


@click.command()
@click.argument("host")
@space_option
@json_option
def ps(host: str, space: str | None, as_json: bool) -> None:
    """What of ours runs on HOST (a name from --space, an ssh alias, or local), its slots included."""
    entry = _whole_host(space, host)
    servers = _servers(entry)
    try:
        servers.inspect()
        found = servers.ps()
        holder = servers.holder()
    finally:
        servers.close()
    if as_json:
        held = None if holder is None else holder.as_dict()
        print_json({"host": entry.name, "holder": held, "found": [_found(f) for f in found]})
        return
    click.echo(f"{entry.name}: held by {holder}" if holder else f"{entry.name}: nobody holds it")
    _list(found)


@click.command()
@click.argument("host")
@space_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def clean(host: str, space: str | None, yes: bool, as_json: bool) -> None:
    """End what of ours runs on HOST, its slots included. Refused while a living controller holds any of it."""
    entry = _whole_host(space, host)
    servers = _servers(entry)
    try:
        servers.inspect()
        found = servers.ps()
        if found and not yes:
            _list(found, err=as_json)
            click.confirm(f"End these on {entry.name}?", abort=True, err=as_json)
        servers.prepare()  # a living controller keeps the host: BusyError
        ended = servers.reconcile()
    finally:
        servers.close()
    if as_json:
        print_json({"host": entry.name, "ended": [_found(f) for f in ended]})
    else:
        click.echo(f"{entry.name}: ended {len(ended)}" if ended else f"{entry.name}: nothing of ours runs there")


# ---------------------------------------------------------------------------------------------- helpers


def _hosts(space: str | None, names: tuple[str, ...]) -> tuple[StudySpec | None, tuple[Host, ...]]:
    """The search space, if any, and the hosts that are meant: those named, else all of the search space's."""
    from sweep.config import Host, Overrides, load_space

    if space is not None:
        spec = load_space(space, Overrides(hosts=names))
        return spec, spec.hosts
    for name in names:
        if not name or name.startswith("-"):
            raise UsageError(f"{name!r} is not a host")
    local = ("local", "localhost")
    return None, tuple(
        Host(name="local", kind="local") if name in local else Host(name=name, ssh=name) for name in names
    )


def _whole_host(space: str | None, name: str) -> Host:
    from sweep.config import without_slots

    (entry,) = without_slots(_hosts(space, (name,))[1])
    return entry


def _servers(entry: Host) -> HostServers:
    from sweep.cli.host_checks import servers_of

    return servers_of(entry, "sglang", {}, 0, "clean")[0]


def _failed(checks: Sequence[Check]) -> bool:
    return any(check.status == "fail" for check in checks)


def _print(title: str, checks: Sequence[Check]) -> None:
    click.echo(title)
    width = max(len(check.name) for check in checks)
    for check in checks:
        click.echo(f"  {MARKS[check.status]}  {check.name:<{width}}  {check.value}")
        if check.advice:
            click.echo(f"        {'':<{width}}  {check.advice}")


def _found(found: Found) -> dict[str, Any]:
    return {
        "study": found.study,
        "launch": found.launch,
        "epoch": found.epoch,
        "marker": found.marker,
        "pid": found.pid,
        "pgid": found.pgid,
        "started": found.started,
        "command": found.command,
        "port": found.port,
        "run_dir": found.run_dir,
        "supervised": found.supervised,
        "server_alive": found.server_alive,
        "processes": [{"pid": pid, "name": name} for pid, name in found.processes],
    }


def _list(found: tuple[Found, ...], *, err: bool = False) -> None:
    if not found:
        click.echo("nothing of ours runs there", err=err)
    for entry in found:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.started)) if entry.started else "unknown"
        place = f"port {entry.port}, {entry.run_dir}" if entry.run_dir else "no record, found by its marker"
        click.echo(f"study {entry.study}, launch {entry.launch}: since {since}, {place}", err=err)
        for pid, name in entry.processes:
            click.echo(f"  {pid:>8}  {name}{'  (server)' if pid == entry.pid else ''}", err=err)
