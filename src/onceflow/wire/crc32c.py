"""CRC-32C, computed by the package crc32c.

Its extension module is loaded without the package's `__init__`, which imports importlib.metadata and argparse for a
version and a command line: 3.6 MB and 18 ms for each broker, client and worker of Spark.
"""

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec

from typing_extensions import Buffer

PACKAGE = "crc32c"
EXTENSION = "_crc32c"


def _load() -> Callable[[Buffer], int]:
    """Return the extension's function. Raises ModuleNotFoundError."""
    package = find_spec(PACKAGE)
    places = None if package is None else package.submodule_search_locations
    extension = None if places is None else PathFinder.find_spec(EXTENSION, places)
    if extension is None or extension.loader is None:
        raise ModuleNotFoundError(f"no extension module {EXTENSION} of the package {PACKAGE}", name=PACKAGE)
    module = module_from_spec(extension)
    extension.loader.exec_module(module)
    function: Callable[[Buffer], int] = module.crc32c
    return function


crc32c = _load()
