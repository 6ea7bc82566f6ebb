"""Write the README's settings tables and ``.env.example`` from the settings classes: ``make settings``.

``--check``: are they current?
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from agent.settings import AgentSettings
from memory.settings import Settings, variable

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
EXAMPLE = ROOT / ".env.example"
TABLES: dict[str, type[BaseSettings]] = {"memory": Settings, "agent": AgentSettings}

_HEAD = """\
# Every setting, with its default: copy this file to .env and uncomment what you change. All come from the environment;
# compose.yaml hands .env to the agent, elsewhere let whatever starts it do so (in a shell: set -a; . ./.env; set +a).
# Written by `make settings`.
"""
_COMPOSE = """
# --- compose.yaml only

# PostgreSQL's password there, letters and digits; as REDIS_PASSWORD, FALKORDB_PASSWORD and LiveKit's key and secret
# above it must be set (openssl rand -hex 24 makes one).
# POSTGRES_PASSWORD=
# Where LiveKit's ports are opened. Unset: 127.0.0.1, for callers on this machine alone.
# LIVEKIT_BIND=
# The address at which callers reach this machine's LiveKit server. Unset: the server finds one.
# NODE_IP=
"""


def table(name: str) -> str:
    """A Markdown table: variable, default, meaning."""
    settings_class, rows = TABLES[name], ["| variable | default | meaning |", "| --- | --- | --- |"]
    for field_name, field in _fields(name):
        default = _default(field)
        shown = f"`{default}`" if default else "unset"
        rows.append(f"| `{variable(settings_class, field_name)}` | {shown} | {field.description} |")
    return "\n".join(rows)


def example() -> str:
    """``.env.example``: every variable with its meaning and default, commented out."""
    return "".join([_HEAD, *(line for name in TABLES for line in _section(name)), _COMPOSE])


def _fields(name: str) -> Iterator[tuple[str, FieldInfo]]:
    """A class's fields without the variables that a class before it has told of."""
    told: set[str] = set()
    for other, settings_class in TABLES.items():
        for field_name, field in settings_class.model_fields.items():
            if other == name and variable(settings_class, field_name) not in told:
                yield field_name, field
        if other == name:
            return
        told |= {variable(settings_class, field_name) for field_name in settings_class.model_fields}


def _section(name: str) -> Iterator[str]:
    settings_class = TABLES[name]
    yield f"\n# --- {name.capitalize()}\n\n"
    for field_name, field in _fields(name):
        default = _default(field)
        yield f"# {field.description}\n"
        yield f"# {variable(settings_class, field_name)}={shlex.quote(default) if default else ''}\n"


def _default(field: FieldInfo) -> str:
    """As it would be written in the environment; empty where it is unset."""
    default = "./data" if field.default_factory is not None else field.default
    if default is None or default is PydanticUndefined:
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


def rendered(text: str) -> str:
    """``text`` with every table between its two markers written anew."""
    for name in TABLES:
        pattern = re.compile(rf"(<!-- settings:{name} -->\n).*?(<!-- /settings:{name} -->)", re.DOTALL)
        if not pattern.search(text):
            raise SystemExit(f"README.md has no <!-- settings:{name} --> … <!-- /settings:{name} --> markers.")
        new = table(name)
        text = pattern.sub(lambda match, new=new: f"{match[1]}{new}\n{match[2]}", text)  # type: ignore[misc]
    return text


def main() -> int:
    new = {README: rendered(README.read_text()), EXAMPLE: example()}
    changed = [path for path, text in new.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in changed:
            print(f"{path.name} is not current: run `make settings`", file=sys.stderr)  # noqa: T201
        return int(bool(changed))
    for path in changed:
        path.write_text(new[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
