"""Listening addresses: parsing them, and binding sockets."""

from __future__ import annotations

import errno
import re
import socket

from llmobs.errors import ConfigError, LlmobsError

_BRACKETED = re.compile(r"\[(?P<host>[0-9a-fA-F:.%\w]+)\]:(?P<port>\d+)")
_PLAIN = re.compile(r"(?P<host>[^:\[\]]*):(?P<port>\d+)")


def parse(address: str) -> tuple[str | None, int]:
    """Return (host, port) of ``host:port``, ``[IPv6]:port`` or ``:port``; host None means every address.

    Raises ConfigError that shows the right spelling.
    """
    match = _BRACKETED.fullmatch(address) or _PLAIN.fullmatch(address)
    if match is None:
        hint = "an IPv6 address needs brackets, as in [::1]:9401" if address.count(":") > 1 else "as in :9401"
        raise ConfigError(f"web.listen: {address!r} is not host:port ({hint})")
    port = int(match["port"])
    if port > 65535:
        raise ConfigError(f"web.listen: {address!r}: ports end at 65535")
    return (None if match["host"] in ("", "::") else match["host"]), port


def bind(address: str) -> socket.socket:
    """Return a listening socket. LlmobsError says what to do when the address is taken or not there."""
    host, port = parse(address)
    try:
        if host is None:
            return _bind_all(port)
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise LlmobsError(
            f"cannot listen on {address} ({error.strerror}); is another llmobs running? choose another with --listen"
        ) from None


def _bind_all(port: int) -> socket.socket:
    """Listen on IPv4 and IPv6 with one socket; on IPv4 alone where the host has no IPv6."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
    return socket.create_server(("0.0.0.0", port), backlog=128)  # noqa: S104 (an exporter is there to be scraped)


def url(sock: socket.socket, *, tls: bool) -> str:
    """Return an address a person on this machine can open."""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104
        host = "localhost"
    return f"http{'s' if tls else ''}://{f'[{host}]' if ':' in host else host}:{port}/"
