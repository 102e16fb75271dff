"""How the settings of a process are read from its environment. Which it has, and what is right, its `config.py` says."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


class ConfigError(Exception):
    """A setting is missing or wrong. The message names its variable."""


@dataclass(frozen=True)
class Settings:
    """The settings of one kind of process: each is a field of `config`, and a variable that begins with `prefix`."""

    config: type[Any]
    prefix: str
    whose: str

    def variable(self, name: str) -> str:
        """The variable of a field: its name in capitals. Those of the log are the same for all processes."""
        return f"TENURE_{name.upper()}" if name.startswith("log_") else f"{self.prefix}{name.upper()}"

    def read(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """The values that are set, by field. Raises ConfigError for one that cannot be read, and for names of no setting."""
        values: dict[str, Any] = {}
        names = {self.variable(field.name): field for field in fields(self.config)}
        for variable, text in environment.items():
            if variable in names:
                values[names[variable].name] = _read(variable, text, names[variable].type)
            elif variable.startswith(self.prefix):
                raise ConfigError(f"{variable} is no setting of {self.whose}; its settings are {', '.join(sorted(names))}")
        return values

    def check_bounds(self, config: Any, bounds: Mapping[str, tuple[float, float]]) -> None:
        """Raises ConfigError for a number that is outside of its bounds."""
        for name, (least, most) in bounds.items():
            if not least <= getattr(config, name) <= most:
                raise ConfigError(f"{self.variable(name)} must be {least:g} to {most:g}")


def check_log(level: str, form: str) -> None:
    """Raises ConfigError for a level or a form of the log that there is not."""
    if level not in ("debug", "info", "warning", "error"):
        raise ConfigError("TENURE_LOG_LEVEL must be debug, info, warning or error")
    if form not in ("json", "console"):
        raise ConfigError("TENURE_LOG_FORMAT must be json or console")


def _read(variable: str, text: str, kind: object) -> Any:
    try:
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]
        if kind in (int, float):
            return kind(text.strip())
    except (KeyError, ValueError):
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}[kind]  # type: ignore[index]
        raise ConfigError(f"{variable} must be {wanted}") from None
    if kind is str:
        return text
    return tuple(part.strip() for part in text.split(",") if part.strip())
