"""Write the README settings tables from the settings classes: ``make settings``. ``--check``: are they current?"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from agent.settings import AgentSettings
from memory.settings import Settings, variable

README = Path(__file__).resolve().parent.parent / "README.md"
TABLES: dict[str, type[BaseSettings]] = {"memory": Settings, "agent": AgentSettings}


def table(settings_class: type[BaseSettings]) -> str:
    """A Markdown table: variable, default, meaning."""
    rows = ["| variable | default | meaning |", "| --- | --- | --- |"]
    for name, field in settings_class.model_fields.items():
        default = _shown(field.default) if field.default_factory is None else "`./data`"
        rows.append(f"| `{variable(settings_class, name)}` | {default} | {field.description} |")
    return "\n".join(rows)


def _shown(default: object) -> str:
    if default is None or default is PydanticUndefined or default == "":
        return "unset"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def rendered(text: str) -> str:
    """``text`` with every table between its two markers written anew."""
    for name, settings_class in TABLES.items():
        pattern = re.compile(rf"(<!-- settings:{name} -->\n).*?(<!-- /settings:{name} -->)", re.DOTALL)
        if not pattern.search(text):
            raise SystemExit(f"README.md has no <!-- settings:{name} --> … <!-- /settings:{name} --> markers.")
        new = table(settings_class)
        text = pattern.sub(lambda match, new=new: f"{match[1]}{new}\n{match[2]}", text)  # type: ignore[misc]
    return text


def main() -> int:
    text = README.read_text()
    new = rendered(text)
    if "--check" in sys.argv[1:]:
        return int(new != text)
    README.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
