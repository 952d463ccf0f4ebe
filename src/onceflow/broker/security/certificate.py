"""The two fields of an X.509 certificate that a broker needs: when it is valid, and the name of its subject.

Python's `ssl` decodes neither an unverified certificate nor the encoding of names that Java's X500Principal.getName()
returns (RFC 2253), which ACLs and mapping rules are written for. The structure is that of RFC 5280, section 4.1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

SEQUENCE, SET, EXPLICIT_VERSION = 0x30, 0x31, 0xA0
UTC_TIME = 0x17
STRINGS = frozenset((12, 19, 20, 22, 27, 30))
"""Tags of the string types that Java writes as text. It takes the bytes of each as UTF-8, also those of BMPString."""
KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""RFC 2253's names of attributes; others are written as their object identifier."""
ESCAPED = ',=+<>#;"\\'


class MalformedCertificate(ValueError):
    """Bytes that are not a certificate."""


@dataclass(frozen=True)
class Certificate:
    """Subject as in RFC 2253, and the time in which the certificate is valid."""

    subject: str
    valid_from: datetime
    valid_until: datetime


def read_certificate(der: bytes) -> Certificate:
    """Return the fields of a certificate. Raises MalformedCertificate."""
    try:
        ((_tag, signed),) = _elements(der)
        (_tag, body), *_signature = _elements(signed)
        fields = [content for tag, content in _elements(body) if tag != EXPLICIT_VERSION]
        _serial, _algorithm, _issuer, validity, subject, *_rest = fields
        valid_from, valid_until = (_time(tag, content) for tag, content in _elements(validity))
        return Certificate(_distinguished_name(subject), valid_from, valid_until)
    except (ValueError, IndexError) as error:
        raise MalformedCertificate(f"not an X.509 certificate: {error}") from error


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (tag, content) of the DER elements that follow each other. Raises ValueError, IndexError."""
    position = 0
    while position < len(data):
        tag, size = data[position], data[position + 1]
        position += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[position : position + count], "big")
            position += count
        if position + size > len(data):
            raise ValueError("an element is longer than the data")
        yield tag, data[position : position + size]
        position += size


def _time(tag: int, content: bytes) -> datetime:
    text = content.decode("ascii")
    if tag == UTC_TIME:
        # RFC 5280: years from 50 on are of the 20th century.
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _distinguished_name(name: bytes) -> str:
    """Return the name as in RFC 2253: the last part first."""
    parts = ["+".join(_attribute(attribute) for _tag, attribute in _elements(part)) for _tag, part in _elements(name)]
    return ",".join(reversed(parts))


def _attribute(attribute: bytes) -> str:
    (_tag, identifier), (tag, value) = _elements(attribute)
    dotted = _object_identifier(identifier)
    keyword = KEYWORDS.get(dotted)
    if keyword is None or tag not in STRINGS:
        return f"{keyword or dotted}=#{_encoded(tag, value).hex()}"
    return f"{keyword}={_escaped(value.decode(errors='replace'))}"


def _encoded(tag: int, value: bytes) -> bytes:
    if len(value) < 0x80:
        return bytes((tag, len(value))) + value
    size = len(value).to_bytes((len(value).bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(size))) + size + value


def _object_identifier(content: bytes) -> str:
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _escaped(text: str) -> str:
    """Escape as Java does (sun.security.x509.AVA): more than RFC 2253 demands, and NUL."""
    start, end = len(text) - len(text.lstrip(" \r")), len(text.rstrip(" \r"))
    return "".join(
        "\\00" if letter == "\0" else f"\\{letter}" if letter in ESCAPED or not start <= index < end else letter
        for index, letter in enumerate(text)
    )
