"""Connections to the SuperLink for the parts of messages. httpx, which carries all other calls, reads 64 KB at a time
and makes five copies of a part; here its bytes go from where they are to where they shall be.
"""

import select
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TypeVar
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from wardround.deployment.flower.wire import Buffer, content_in

Got = TypeVar("Got")
TIMEOUT = 30.0  # seconds without a byte
LARGEST_ERROR = 64 * 2**10  # bytes of an answer that refuses
CUT_OFF = "the answer is cut off"
HEAD = 4096  # bytes of an answer in which its part begins


class Line:
    def __init__(self, address: str, tls: ssl.SSLContext | None, proxies: bool) -> None:
        """`proxies`: whether the environment's are used, as for all other calls to this address."""
        parts = urlsplit(f"//{address}")
        self.host, self.port, self.tls = parts.hostname or "", parts.port or 0, tls
        self.proxy = getproxies().get("https") if proxies and not proxy_bypass(self.host) else None
        self.idle: list[HTTPConnection] = []

    def post(
        self,
        path: str,
        headers: Mapping[str, str],
        pieces: Sequence[Buffer],
        read: Callable[[HTTPResponse], Got],
    ) -> Got:
        """What `read` makes of the answer; an error of httpx if it fails or is refused."""
        connection = self._usable()
        try:
            connection.putrequest("POST", path, skip_host=True, skip_accept_encoding=True)
            for name, value in {**headers, "content-length": str(sum(map(len, pieces)))}.items():
                connection.putheader(name, value)
            connection.endheaders()
            for piece in pieces:
                connection.send(piece)
            response = connection.getresponse()
            if response.status >= httpx.codes.BAD_REQUEST:
                raise _refused(response, path)
            got = read(response)
            whole = response.isclosed() or response.read(1) == b""
        except (OSError, HTTPException) as error:
            connection.close()
            raise httpx.ReadError(str(error)) from error
        except BaseException:
            connection.close()
            raise
        if whole and not response.will_close:
            self.idle.append(connection)
        else:
            connection.close()
        return got

    def close(self) -> None:
        while self.idle:
            self.idle.pop().close()

    def _usable(self) -> HTTPConnection:
        """One that is open, and that the other end has not closed meanwhile."""
        while self.idle:
            connection = self.idle.pop()
            waiting = select.poll()
            waiting.register(connection.sock, select.POLLIN)
            if not waiting.poll(0):
                return connection
            connection.close()
        return self._connected()

    def _connected(self) -> HTTPConnection:
        host, port, proxy = self.host, self.port, urlsplit(self.proxy) if self.proxy else None
        if proxy is not None:
            host, port = proxy.hostname or "", proxy.port or 8080
        if self.tls is None:
            connection = HTTPConnection(host, port, timeout=TIMEOUT)
        else:
            connection = HTTPSConnection(host, port, timeout=TIMEOUT, context=self.tls)
        if proxy is not None:
            connection.set_tunnel(self.host, self.port, _credentials(proxy.username, proxy.password))
        try:
            connection.connect()
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _credentials(user: str | None, password: str | None) -> dict[str, str]:
    if user is None:
        return {}
    basic = httpx.BasicAuth(unquote(user), unquote(password or ""))
    return {"Proxy-Authorization": next(basic.auth_flow(httpx.Request("GET", "http://proxy"))).headers["authorization"]}


def _refused(response: HTTPResponse, path: str) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", f"http://superlink{path}")
    answer = httpx.Response(response.status, content=response.read(LARGEST_ERROR), request=request)
    return httpx.HTTPStatusError(f"{response.status} for {path}", request=request, response=answer)


def read_part(response: HTTPResponse, field: int, place: memoryview | None, head: bytes) -> tuple[bytes, bytes]:
    """An answer without the part in it, and the part; where it has a `place`, it goes there instead, without `head`.

    ValueError if it is not what it should be."""
    size = response.length or 0
    start = _exactly(response, min(size, HEAD))
    found = content_in(start, field)
    if found is None:
        return start + _exactly(response, size - len(start)), b""
    answer, first, length = found
    if first + length != size:
        raise ValueError("a part of another length than its call says")
    begun = start[first:]
    if place is None:
        return answer, begun + _exactly(response, size - len(start))
    if length != len(head) + len(place) or not begun.startswith(head):
        raise ValueError("a part of another length than its message says")
    filled = len(begun) - len(head)
    place[:filled] = begun[len(head) :]
    while filled < len(place):
        count = response.readinto(place[filled:])
        if not count:
            raise HTTPException(CUT_OFF)
        filled += count
    return answer, b""


def _exactly(response: HTTPResponse, size: int) -> bytes:
    content = response.read(size)
    if len(content) < size:
        raise HTTPException(CUT_OFF)
    return content
