"""Ogg pages with a stream number that their sound decides: libsndfile draws one by lot, and the same speech would
never be the same file. Numbers of different speech differ, as streams that follow each other in one file must.
"""

import struct
import zlib
from collections.abc import Callable
from functools import cache

_HEADER = 27  # bytes before the table of segments
_NUMBER, _CRC = slice(14, 18), slice(22, 26)


@cache
def _table() -> list[int]:
    """Ogg's own checksum (RFC 3533): polynomial 0x04c11db7, highest bit first."""
    entries = []
    for byte in range(256):
        value = byte << 24
        for _ in range(8):
            value = (value << 1 ^ (0x04C11DB7 if value & 1 << 31 else 0)) & 0xFFFFFFFF
        entries.append(value)
    return entries


def checksum(page: bytes) -> int:
    """Of a page whose own field is zero."""
    table, value = _table(), 0
    for byte in page:
        value = (value << 8 & 0xFFFFFFFF) ^ table[value >> 24 ^ byte]
    return value


class Pages:
    """Takes an Ogg stream in any pieces and hands its pages on, from the first with sound on."""

    def __init__(self, hand_on: Callable[[bytes], object]):
        self._hand_on = hand_on
        self._rest = bytearray()
        self._waiting: list[bytes] = []  # headers, until there is sound
        self._number: bytes | None = None

    def write(self, data: bytes) -> None:
        self._rest += data
        while (size := self._page_size()) is not None:
            page = bytes(self._rest[:size])
            del self._rest[:size]
            self._waiting.append(page)
            if self._number is None and int.from_bytes(page[6:14], "little", signed=True) > 0:
                self._number = struct.pack("<I", zlib.crc32(page[_HEADER:]))
            if self._number is not None:
                self.flush()

    def flush(self) -> None:
        """Hand on what waits, without sound, too."""
        for page in self._waiting:
            numbered = bytearray(page)
            numbered[_NUMBER], numbered[_CRC] = self._number or bytes(4), bytes(4)
            numbered[_CRC] = struct.pack("<I", checksum(numbered))
            self._hand_on(bytes(numbered))
        self._waiting.clear()

    def _page_size(self) -> int | None:
        """Of the first page, when it is whole."""
        if len(self._rest) < _HEADER or len(self._rest) < (body := _HEADER + self._rest[26]):
            return None
        size = body + sum(self._rest[_HEADER:body])
        return size if len(self._rest) >= size else None
