"""Plotly's JavaScript, as included in the page. It is read from the plotly package, whose Python code is not imported.
Compressed it is a third of its 4.8 MB; browsers decompress it (DecompressionStream: Chrome 80, Firefox 113, Safari 16.4
and later). Other browsers show the static figures.
"""

from __future__ import annotations

import base64
import gzip
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

_FILE = Path("package_data") / "plotly.min.js"


@lru_cache(maxsize=1)
def pack_library() -> str:
    """Return Plotly's JavaScript, gzipped, in base64; the text is always the same."""
    return base64.b64encode(gzip.compress(read_library(), compresslevel=6, mtime=0)).decode()


def read_library() -> bytes:
    """Return Plotly's JavaScript."""
    spec = find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("plotly is not installed: pip install plotly")
    return (Path(next(iter(spec.submodule_search_locations))) / _FILE).read_bytes()
