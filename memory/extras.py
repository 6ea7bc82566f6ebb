"""How a part that is missing is installed, wherever this installation came from: an index, a checkout, a repository.

Above: everything that can miss one. Below: nothing.
"""

from __future__ import annotations

from pathlib import Path

PROJECT = "livekit-unified-memory"
_CHECKOUT = Path(__file__).parents[1]


def install(extra: str) -> str:
    """The command that adds the ``extra`` to this installation."""
    return f'pip install "{_requirement(extra)}"'


def _requirement(extra: str) -> str:
    # Only here: who misses nothing, such as the embedded server's supervisor, is to stay small.
    import importlib.metadata
    import json
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        told = importlib.metadata.distribution(PROJECT).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:  # not installed: found on the module path
        return f"{_CHECKOUT}[{extra}]" if (_CHECKOUT / "pyproject.toml").is_file() else f"{PROJECT}[{extra}]"
    if told is None:  # from an index
        return f"{PROJECT}[{extra}]"
    source = json.loads(told)
    url = str(source["url"])
    if "dir_info" in source:
        return f"{url2pathname(urlsplit(url).path)}[{extra}]"
    kind = f"{source['vcs_info']['vcs']}+" if "vcs_info" in source else ""
    return f"{PROJECT}[{extra}] @ {kind}{url}"
