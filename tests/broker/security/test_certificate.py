"""The fields of certificates, against those that OpenSSL and the library cryptography state."""

import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from hypothesis import given
from hypothesis import strategies as st

from onceflow.broker.config import SecurityConfig
from onceflow.broker.security.certificate import MalformedCertificate, read_certificate
from onceflow.broker.security.tls import ListenerTls, UnmappedName
from tests.client.tls import Authority

NAME = x509.NameOID
KEY = ec.generate_private_key(ec.SECP256R1())
FROM = datetime.datetime(1999, 12, 31, 1, 2, 3, tzinfo=datetime.UTC)
UNTIL = datetime.datetime(2051, 1, 1, tzinfo=datetime.UTC)


def certificate(*parts: x509.RelativeDistinguishedName) -> bytes:
    """Return a certificate with this subject, of version 3, in DER."""
    name = x509.Name(parts)
    builder = x509.CertificateBuilder(name, name, KEY.public_key(), 1, FROM, UNTIL)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.DER)


def part(*pairs: tuple[x509.ObjectIdentifier, str]) -> x509.RelativeDistinguishedName:
    return x509.RelativeDistinguishedName([x509.NameAttribute(kind, value) for kind, value in pairs])


CERTIFICATE = certificate(part((NAME.COMMON_NAME, "ada")))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((part((NAME.COUNTRY_NAME, "GB")), part((NAME.COMMON_NAME, "ada"))), "CN=ada,C=GB"),
        ((part((NAME.COMMON_NAME, 'a,"b"+c;<d>\\')),), r"CN=a\,\"b\"\+c\;\<d\>\\"),
        ((part((NAME.COMMON_NAME, " a ")),), r"CN=\ a\ "),
        ((part((NAME.COMMON_NAME, "#a")),), r"CN=\#a"),
        ((part((NAME.COMMON_NAME, "Zoë")), part((NAME.USER_ID, "1"))), "UID=1,CN=Zoë"),
        ((part((NAME.EMAIL_ADDRESS, "a@b.c")),), "1.2.840.113549.1.9.1=#1605614062" + "2e63"),
        ((part((NAME.COMMON_NAME, "a")), part((NAME.ORGANIZATION_NAME, "b"))), "O=b,CN=a"),
    ],
)
def test_subject_is_written_as_in_java(parts: tuple[x509.RelativeDistinguishedName, ...], expected: str) -> None:
    assert read_certificate(certificate(*parts)).subject == expected


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (_ASN1Type.UTF8String, "a=b#c", r"CN=a\=b\#c"),
        (_ASN1Type.UTF8String, "  a \r", "CN=\\ \\ a\\ \\\r"),
        (_ASN1Type.UTF8String, "a\0b", r"CN=a\00b"),
        (_ASN1Type.T61String, "Zoë", "CN=Zoë"),
        (_ASN1Type.BMPString, "ab", r"CN=\00a\00b"),
        (_ASN1Type.NumericString, "12", "CN=#12023132"),
        (_ASN1Type.UniversalString, "a", "CN=#1c0400000061"),
    ],
)
def test_types_and_escapes_are_those_of_java(kind: _ASN1Type, value: str, expected: str) -> None:
    """Expected are the names that X500Principal.getName() of Java 17 returns for these certificates."""
    attribute = x509.NameAttribute(NAME.COMMON_NAME, value, _type=kind, _validate=False)
    assert read_certificate(certificate(x509.RelativeDistinguishedName([attribute]))).subject == expected


def test_names_beyond_utf8_have_no_principal(tmp_path: Path) -> None:
    """Java replaces the bytes, so that several names become one."""
    tls = ListenerTls("A", SecurityConfig(key_store_file=str(Authority(tmp_path).issue("127.0.0.1"))))
    attribute = x509.NameAttribute(NAME.COMMON_NAME, "é", _type=_ASN1Type.BMPString)
    der = certificate(x509.RelativeDistinguishedName([attribute]))
    assert read_certificate(der).subject == "CN=\\00\ufffd"
    with pytest.raises(UnmappedName, match="is not UTF-8"):
        tls.principal(der)


def test_several_attributes_in_one_part() -> None:
    both = part((NAME.COMMON_NAME, "a"), (NAME.ORGANIZATION_NAME, "b"))
    assert set(read_certificate(certificate(both)).subject.split("+")) == {"CN=a", "O=b"}


def test_times_of_both_encodings() -> None:
    """Years from 2050 on have four digits (RFC 5280)."""
    read = read_certificate(CERTIFICATE)
    assert (read.valid_from, read.valid_until) == (FROM, UNTIL)


def test_pem_of_openssl(tmp_path: object) -> None:
    pem = ssl.DER_cert_to_PEM_cert(CERTIFICATE)
    assert read_certificate(ssl.PEM_cert_to_DER_cert(pem)).subject == "CN=ada"


@given(st.integers(0, len(CERTIFICATE) - 1), st.integers(0, 255))
def test_damage_is_read_or_refused(position: int, byte: int) -> None:
    damaged = bytearray(CERTIFICATE)
    damaged[position] = byte
    try:
        read_certificate(bytes(damaged))
    except MalformedCertificate:
        return


@given(st.integers(0, len(CERTIFICATE) - 1))
def test_a_cut_certificate_is_refused(size: int) -> None:
    with pytest.raises(MalformedCertificate):
        read_certificate(CERTIFICATE[:size])


def test_long_names_have_no_principal(tmp_path: Path) -> None:
    """A pattern with `.*` twice needs the square of the name's length."""
    key_store = Authority(tmp_path).issue("127.0.0.1")
    tls = ListenerTls("A", SecurityConfig(key_store_file=str(key_store)))
    unit = part((NAME.ORGANIZATIONAL_UNIT_NAME, "," * 64))
    assert len(tls.principal(certificate(*[unit] * 31)).name) == 31 * 132 - 1
    with pytest.raises(UnmappedName, match="the client's name has 4223 characters, more than 4096"):
        tls.principal(certificate(*[unit] * 32))
