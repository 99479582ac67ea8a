"""A wire of two TUN devices that hands every packet on after a while: `slow_wire.py NETNS NEAR FAR SECONDS`.

One end is here, one in the namespace; host routes to FAR (here) and NEAR (there) lead over it until this process ends,
since the devices go with it. Prints ``up`` when that is so.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import select
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000


def tun(name: str) -> int:
    """A new TUN device in the namespace this process is in now."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return descriptor


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def main(netns: str, near: str, far: str, delay: str) -> None:
    seconds = float(delay)
    name = f"sl{os.getpid()}"
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    here = tun(name)
    enter(os.open(f"/var/run/netns/{netns}", os.O_RDONLY))
    there = tun(name)
    enter(home)
    ip("-n", netns, "link", "set", name, "up")
    ip("-n", netns, "route", "add", f"{near}/32", "dev", name, "src", far)
    ip("link", "set", name, "up")
    ip("route", "add", f"{far}/32", "dev", name, "src", near)
    sys.stdout.write("up\n")
    sys.stdout.flush()
    other = {here: there, there: here}
    waiting: list[tuple[float, int, int, bytes]] = []
    count = 0
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for end in select.select([here, there], [], [], pause)[0]:
            count += 1
            heapq.heappush(waiting, (time.monotonic() + seconds, count, other[end], os.read(end, 65536)))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, end, packet = heapq.heappop(waiting)
            try:
                os.write(end, packet)
            except OSError:
                continue  # the device is full: a lost packet, as on any wire


if __name__ == "__main__":
    main(*sys.argv[1:])
