"""The contexts of `delayctl`: named clusters with how to reach them, in a file of the user's.

    current = "orders"

    [contexts.orders]
    endpoint = "orders.shop.svc:7071"
    ca = "/etc/delay/ca.crt"
    token-file = "/var/run/secrets/delay/token"

Keys and tokens are files of their own, which a context only names.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Final

CONFIG_VARIABLE: Final = "DELAYCTL_CONFIG"
MAX_CONFIG_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class BadConfig(ValueError):
    """The file cannot be used, or has no such context: says why."""


@dataclass(frozen=True, slots=True)
class Context:
    """One cluster. Empty: not given. ca, client_cert, client_key, token_file: paths. tls: whatever else is given."""

    endpoint: str = ""
    kube: str = ""
    tls: bool = False
    ca: str = ""
    client_cert: str = ""
    client_key: str = ""
    server_name: str = ""
    token_file: str = ""
    service_account: str = ""

    def given(self) -> Iterator[tuple[str, str | bool]]:
        """What is given, by the names that the file and options have for it."""
        for one in fields(self):
            value: str | bool = getattr(self, one.name)
            if value:
                yield one.name.replace("_", "-"), value


FIELDS: Final = {one.name.replace("_", "-"): one for one in fields(Context)}


@dataclass(frozen=True, slots=True)
class ContextFile:
    current: str = ""
    contexts: Mapping[str, Context] = field(default_factory=dict)

    def named(self, name: str) -> Context:
        """Raises BadConfig."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise BadConfig(f"there is no context {name!r}; there are: {known}")
        return self.contexts[name]

    def with_context(self, name: str, context: Context) -> ContextFile:
        """The first one is the current one. Raises BadConfig."""
        if not _NAME.fullmatch(name):
            raise BadConfig(
                f"{name!r} is no name of a context: 1 to 63 of a-z, A-Z, 0-9, '.', '_' and '-', starting and ending "
                "with a letter or digit"
            )
        if bool(context.endpoint) == bool(context.kube):
            raise BadConfig(f"context {name!r} names no cluster, or two: give one of endpoint and kube")
        for key, value in context.given():
            if isinstance(value, str) and not value.isprintable():
                raise BadConfig(f"{key} of context {name!r} has characters that cannot be printed")
        return ContextFile(self.current or name, {**self.contexts, name: context})

    def using(self, name: str) -> ContextFile:
        """Raises BadConfig."""
        self.named(name)
        return replace(self, current=name)

    def without(self, name: str) -> ContextFile:
        """Raises BadConfig."""
        self.named(name)
        rest = {other: context for other, context in self.contexts.items() if other != name}
        return ContextFile("" if self.current == name else self.current, rest)


def config_path() -> Path:
    """$DELAYCTL_CONFIG, else delayctl/config.toml where the user's programs keep their settings."""
    if given := os.environ.get(CONFIG_VARIABLE):
        return Path(given)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "delayctl" / "config.toml"


def load(path: Path) -> ContextFile:
    """Empty where there is no file. Raises BadConfig."""
    try:
        with path.open("rb") as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        return ContextFile()
    except OSError as error:
        raise BadConfig(f"{path} cannot be read: {error.strerror}") from None
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BadConfig(f"{path} can be written by others, who could send your token where they like: chmod 600 it")
    if len(text) > MAX_CONFIG_BYTES:
        raise BadConfig(f"{path} has over 1 MiB")
    try:
        found = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path} is not TOML: {error}") from None
    try:
        return _contexts(found)
    except BadConfig as error:
        raise BadConfig(f"{path}: {error}") from None


def _contexts(found: Mapping[str, object]) -> ContextFile:
    current, contexts = found.get("current", ""), found.get("contexts", {})
    if unknown := found.keys() - {"current", "contexts"}:
        raise BadConfig(f"unknown {', '.join(sorted(unknown))}; there are current and contexts")
    if not isinstance(current, str) or not isinstance(contexts, dict):
        raise BadConfig("current is a text, and contexts is a table")
    file = ContextFile(current)
    for name, values in contexts.items():
        if not isinstance(values, dict):
            raise BadConfig(f"context {name!r} is not a table")
        for key, value in values.items():
            if key not in FIELDS:
                raise BadConfig(f"context {name!r} has an unknown {key}; there are {', '.join(FIELDS)}")
            if type(value) is not type(FIELDS[key].default):
                raise BadConfig(f"{key} of context {name!r} is not a {'text' if FIELDS[key].default == '' else 'bool'}")
        file = file.with_context(name, Context(**{key.replace("-", "_"): value for key, value in values.items()}))
    return replace(file, current=current)


def save(path: Path, file: ContextFile) -> None:
    """For its owner only. Raises BadConfig."""
    lines = [f"current = {_quoted(file.current)}"] if file.current else []
    for name, context in sorted(file.contexts.items()):
        lines += ["", f"[contexts.{_quoted(name)}]"]
        lines += [f"{key} = {'true' if value is True else _quoted(str(value))}" for key, value in context.given()]
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # its mode is 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write("\n".join(lines).lstrip("\n") + "\n")
            Path(temporary).replace(path)
        except BaseException:
            with suppress(FileNotFoundError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        raise BadConfig(f"{path} cannot be written: {error.strerror}") from None


def _quoted(text: str) -> str:
    """A basic string of TOML; all its characters can be printed."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
