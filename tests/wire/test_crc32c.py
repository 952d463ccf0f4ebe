"""CRC-32C is that of the package, loaded without what its `__init__` imports."""

import subprocess
import sys

import crc32c as package
import pytest

from onceflow.wire.crc32c import crc32c

COSTLY = ("importlib.metadata", "argparse")


@pytest.mark.parametrize(
    "data", [b"", b"123456789", bytearray(b"abc"), memoryview(bytearray(range(256)) * 40)[7:]], ids=len
)
def test_equal_to_the_packages_function(data: bytes) -> None:
    assert crc32c(data) == package.crc32c(data)


def test_check_value() -> None:
    """RFC 3720 calls the polynomial Castagnoli's; this is its check value in the catalogue of CRCs."""
    assert crc32c(b"123456789") == 0xE3069283


def test_nothing_costly_is_imported() -> None:
    program = f"import sys, onceflow.wire.batch; print([name for name in {COSTLY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
