"""Hosts on one machine: a network namespace each, joined by a bridge, so that any pair can be cut in either direction.

A cut drops packets silently: the sender's neighbour table gets a wrong hardware address for the other host, which is
what a broken switch looks like. Needs root and iproute2; this process stands on the bridge itself, as host `test`.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType

WRONG_ADDRESS = "02:00:00:00:00:99"  # nobody has it
HERE = "test"


def why_not() -> str:
    """Why namespaces cannot be had here; empty where they can."""
    if os.getuid() != 0:
        return "needs root"
    if shutil.which("ip") is None:
        return "needs iproute2"
    try:
        with Network() as network:
            network.add("probe")
    except (OSError, subprocess.CalledProcessError) as error:
        return f"the kernel does not allow network namespaces: {error}"
    return ""


class Network:
    """Use as `with Network() as network`. Names carry this process's id, so several can run beside each other."""

    def __init__(self) -> None:
        number = os.getpid()
        self._prefix = f"dpc{number % 100_000}"
        self._subnet = f"10.{200 + number // 250 % 50}.{number % 250}"
        self._ips = {HERE: f"{self._subnet}.1"}
        self._cuts: set[tuple[str, str]] = set()
        self._isolated: set[str] = set()

    def __enter__(self) -> "Network":
        _ip("link", "add", self._prefix, "type", "bridge")
        _ip("addr", "add", f"{self._ips[HERE]}/24", "dev", self._prefix)
        _ip("link", "set", self._prefix, "up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, name in enumerate(self._ips):
            if name != HERE:
                subprocess.run(["ip", "link", "del", self._outside(number)], check=False, stderr=subprocess.DEVNULL)
                subprocess.run(["ip", "netns", "del", self._space(name)], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "del", self._prefix], check=False, stderr=subprocess.DEVNULL)

    def add(self, name: str) -> str:
        """A new host; returns its IP address."""
        number, space = len(self._ips), self._space(name)
        outside = self._outside(number)
        self._ips[name] = f"{self._subnet}.{number + 1}"
        _ip("netns", "add", space)
        _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", outside, "master", self._prefix, "up")
        _ip("-n", space, "link", "set", "lo", "up")
        _ip("-n", space, "link", "set", "eth0", "up")
        _ip("-n", space, "addr", "add", f"{self._ips[name]}/24", "dev", "eth0")
        return self._ips[name]

    def ip(self, name: str) -> str:
        return self._ips[name]

    def inside(self, name: str) -> Sequence[str]:
        """What to put before a command so that it runs on this host; the process stays the same one."""
        return ("ip", "netns", "exec", self._space(name))

    def cut(self, sender: str, receiver: str) -> None:
        """From now on nothing that `sender` sends reaches `receiver`; the other direction is another cut."""
        self._cuts.add((sender, receiver))
        where = self._neighbours(sender)
        _ip(*where[0], "neigh", "replace", self._ips[receiver], "lladdr", WRONG_ADDRESS, "nud", "permanent", *where[1])

    def cut_both(self, one: str, other: str) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def isolate(self, name: str) -> None:
        """Pull the plug of a host."""
        self._isolated.add(name)
        _ip("link", "set", self._outside(list(self._ips).index(name)), "down")

    def heal(self) -> None:
        """End all cuts."""
        for sender, receiver in self._cuts:
            where = self._neighbours(sender)
            _ip(*where[0], "neigh", "del", self._ips[receiver], *where[1])
        for name in self._isolated:
            _ip("link", "set", self._outside(list(self._ips).index(name)), "up")
        self._cuts.clear()
        self._isolated.clear()

    def _neighbours(self, name: str) -> tuple[Sequence[str], Sequence[str]]:
        """Words around a command about the neighbours of a host."""
        if name == HERE:
            return (), ("dev", self._prefix)
        return ("-n", self._space(name)), ("dev", "eth0")

    def _space(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _outside(self, number: int) -> str:
        return f"{self._prefix}v{number}"  # at most 15 characters


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
