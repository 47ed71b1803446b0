"""Every setting of a training run, as a TOML file that can be edited and given to ``--config``.

Made from the fields of `TrainConfig`, so it cannot miss one. It says what a setting is, not what it should be.
"""

import json
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from envgym_agents.learn.config import TrainConfig

__all__ = ["settings_text"]

_SIGNS = ((Ge, "ge", ">="), (Gt, "gt", ">"), (Le, "le", "<="), (Lt, "lt", "<"))


def settings_text() -> str:
    """One line per setting: its default, its bound, what it is. One that is none by default is a comment."""
    return "\n".join(_section(TrainConfig, ""))


def _section(model: type[BaseModel], name: str) -> list[str]:
    lines = [f"[{name}]  # {(model.__doc__ or '').partition(chr(10))[0]}"] if name else []
    below: list[str] = []
    for field, info in model.model_fields.items():
        default = info.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            below += ["", *_section(type(default), f"{name}.{field}".lstrip("."))]
        elif isinstance(default, dict):
            below += ["", f"[{f'{name}.{field}'.lstrip('.')}]  # {info.description}"]
        else:
            value = f"# {field} = none" if default is None else f"{field} = {_toml(default)}"
            lines.append(f"{value:26} # {'; '.join(filter(None, (_bound(info), info.description)))}")
    return lines + below


def _toml(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _bound(info: FieldInfo) -> str:
    if get_origin(info.annotation) is Literal:
        named = " or ".join(map(_toml, get_args(info.annotation)))
        return named if len(named) <= 90 else f"one of {len(get_args(info.annotation))}"
    found = [
        f"{sign} {getattr(one, name)}"
        for one in info.metadata
        for kind, name, sign in _SIGNS
        if isinstance(one, kind)
    ]
    return ", ".join(found)
