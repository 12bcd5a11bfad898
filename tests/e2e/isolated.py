"""Runs a command in a network of its own and writes down every packet that wants to leave it.

The network has loopback and one interface that leads nowhere, with default routes over it: what a
process sends to any address that is not the machine's own arrives there and is recorded. So is
every look-up of a name: a resolver on loopback or behind a socket file would hide it, so the one
name server that the command finds is beyond that interface. Linux, and root or user namespaces,
are needed. Usage: ``isolated.py <packets.json> <command …>``.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from pyroute2 import IPRoute

CLONE_NEWNET, CLONE_NEWNS = 0x40000000, 0x00020000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
ETH_P_ALL = 0x0003
NOWHERE, PEER = "nowhere0", "nowhere1"
ADDRESS, GATEWAY = "198.51.100.2", "198.51.100.1"
ADDRESS6, GATEWAY6 = "2001:db8::2", "2001:db8::1"
NAME_SERVER = "192.0.2.53"
RESOLVER, NAME_SERVICES = Path("/etc/resolv.conf"), Path("/etc/nsswitch.conf")
MAC = "02:00:00:00:00:01"
TCP, UDP, DNS = 6, 17, 53
PROTOCOLS = {TCP: "tcp", UDP: "udp"}


def enter_empty_network() -> None:
    """Leaves the machine's network. Raises ``OSError`` where that is not allowed."""
    _call("unshare", CLONE_NEWNET | CLONE_NEWNS)
    # Private, or what is mounted below would be mounted for the whole machine.
    _call("mount", b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
    cover(RESOLVER, f"nameserver {NAME_SERVER}\n")
    if NAME_SERVICES.exists():
        # Not systemd's service either, which asks over a socket file.
        cover(
            NAME_SERVICES, re.sub(r"(?m)^hosts:.*", "hosts: files dns", NAME_SERVICES.read_text())
        )
    with IPRoute() as network:
        network.link("set", index=network.link_lookup(ifname="lo")[0], state="up")
        network.link("add", ifname=NOWHERE, kind="veth", peer={"ifname": PEER})
        peer = network.link_lookup(ifname=PEER)[0]
        network.link("set", index=peer, state="up")
        index = network.link_lookup(ifname=NOWHERE)[0]
        network.link("set", index=index, state="up")
        network.addr("add", index=index, address=ADDRESS, prefixlen=24)
        # Known neighbours, so that packets are sent and not only asked for.
        network.neigh("add", dst=GATEWAY, lladdr=MAC, ifindex=index, state=128)
        network.route("add", dst="default", gateway=GATEWAY)
        if Path("/proc/sys/net/ipv6").exists():
            # 2: no duplicate address detection, so the address can be used at once.
            network.addr(
                "add", index=index, address=ADDRESS6, prefixlen=64, family=socket.AF_INET6, flags=2
            )
            network.neigh(
                "add", dst=GATEWAY6, lladdr=MAC, ifindex=index, state=128, family=socket.AF_INET6
            )
            network.route("add", dst="default", gateway=GATEWAY6, family=socket.AF_INET6)


def cover(path: Path, text: str) -> None:
    """Lets a file have this content, in this mount namespace and nowhere else."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(text)
        file.flush()
        os.chmod(file.name, 0o644)
        # Over what a link leads to: a link itself cannot be mounted over.
        _call(
            "mount", file.name.encode(), bytes(path.resolve()), None, ctypes.c_ulong(MS_BIND), None
        )


def _call(function: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{function}: {os.strerror(error)}")


class Recorder:
    """Destinations of TCP and UDP packets that were sent over the interface to nowhere."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self._socket.bind((NOWHERE, 0))
        self._socket.settimeout(0.2)
        self.sent: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._record)
        self._thread.start()

    def stop(self) -> None:
        """Returns when all packets so far are recorded."""
        self._over.set()
        self._thread.join()

    def _record(self) -> None:
        while True:
            try:
                frame, address = self._socket.recvfrom(65_535)
            except TimeoutError:
                if self._over.is_set():
                    return
                continue
            if address[2] == socket.PACKET_OUTGOING:
                destination = describe(frame)
                if destination:
                    self.sent.add(destination)


def describe(frame: bytes) -> str | None:
    """``tcp 192.0.2.1:443`` of an Ethernet frame; None for what is neither TCP nor UDP."""
    kind = struct.unpack("!H", frame[12:14])[0]
    packet = frame[14:]
    if kind == 0x0800:
        protocol, host = packet[9], socket.inet_ntop(socket.AF_INET, packet[16:20])
        payload = packet[(packet[0] & 15) * 4 :]
    elif kind == 0x86DD:
        protocol, host = packet[6], f"[{socket.inet_ntop(socket.AF_INET6, packet[24:40])}]"
        payload = packet[40:]
    else:
        return None
    if protocol not in PROTOCOLS:
        return None
    port = struct.unpack("!H", payload[2:4])[0]
    asked = f" asks for {name_asked_for(payload[8:])}" if protocol == UDP and port == DNS else ""
    return f"{PROTOCOLS[protocol]} {host}:{port}{asked}"


def name_asked_for(query: bytes) -> str:
    """The name in a DNS query (RFC 1035, section 4.1.2), or ``?`` where it is none."""
    labels, position = [], 12
    while position < len(query) and (length := query[position]):
        labels.append(query[position + 1 : position + 1 + length].decode("ascii", "replace"))
        position += 1 + length
    return ".".join(labels) or "?"


def main(argv: list[str]) -> int:
    """Runs the command; its exit code."""
    enter_empty_network()
    recorder = Recorder()
    process = subprocess.Popen(argv[2:], start_new_session=True)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGTERM)
        code = process.wait()
    finally:
        recorder.stop()
        Path(argv[1]).write_text(json.dumps(sorted(recorder.sent)))
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
