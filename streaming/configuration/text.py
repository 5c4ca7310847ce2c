"""The configuration file as text: YAML in, plain values out, and back.

Numbers stay exact: a YAML float becomes a Decimal from its own digits, for prices are money. A key that is given twice,
an octal or a sexagesimal number is a mistake and not an idiom here.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import yaml

from billing.phrases import at, gettext_noop, phrase
from billing.phrases import phrase as _

BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's where the wheel has it: ten times as fast on a file with hundreds of models."""

PLAIN_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
PLAIN_FLOAT = re.compile(r"[-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|[-+]?\.[0-9_]+([eE][-+]?[0-9]+)?")
NOT_PLAIN = gettext_noop("%(value)s is not a plain decimal number; put it in quotes if it is text")
LINE_BREAK = re.compile("[\n\r\x85\u2028\u2029]")
VARIABLE = re.compile(r"\$\{([^}]*)\}")
OWN_SETTINGS = ("SECRET_KEY", "DATABASE_URL", "REDIS_URL", "DEBUG", "ALLOWED_HOSTS", "DJANGO_SETTINGS_MODULE")


class NotReadable(ValueError):
    """The file is no YAML; the text says where and why in one line."""


class _Loader(BaseLoader):  # type: ignore[misc]  # one of two classes, known at run time
    pass


def _integer(loader: Any, node: Any) -> int:
    if not PLAIN_INTEGER.fullmatch(node.value):
        raise _fault(node, phrase(NOT_PLAIN, value=node.value))
    return int(node.value.replace("_", ""))


def _float(loader: Any, node: Any) -> Decimal:
    if not PLAIN_FLOAT.fullmatch(node.value):
        raise _fault(node, phrase(NOT_PLAIN, value=node.value))
    return Decimal(node.value.replace("_", ""))


def _mapping(loader: Any, node: Any) -> dict[Any, Any]:
    given: set[str] = set()
    for key, _value in node.value:
        if not isinstance(key.value, str):
            raise _fault(key, _("a key must be text"))
        if key.value in given and key.tag != "tag:yaml.org,2002:merge":
            raise _fault(key, _("the key %(key)s is given twice; keep one", key=repr(key.value)))
        given.add(key.value)
    loader.flatten_mapping(node)
    return {
        loader.construct_object(key, deep=True): loader.construct_object(value, deep=True) for key, value in node.value
    }


def _fault(node: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _timestamp(loader: Any, node: Any) -> Any:
    """A day or moment; one that is in no calendar as its text, which the field that holds it refuses by its name."""
    try:
        return yaml.constructor.SafeConstructor.construct_yaml_timestamp(loader, node)
    except (ValueError, OverflowError):
        return node.value


_Loader.add_constructor("tag:yaml.org,2002:timestamp", _timestamp)
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def load(raw: bytes) -> Any:
    """The value of a YAML (or JSON) file; NotReadable, with the line, where it is none."""
    try:
        return yaml.load(raw.decode("utf-8-sig"), _Loader)  # noqa: S506 - a safe loader with stricter numbers
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise NotReadable(at(_("line %(line)s", line=line), _("not UTF-8 text; save the file as UTF-8"))) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = error.problem or error.context or _("not YAML")
        where = mark and _("line %(line)s, column %(column)s", line=mark.line + 1, column=mark.column + 1)
        raise NotReadable(at(where, what) if where else what) from None
    except RecursionError:
        raise NotReadable(_("nested too deeply")) from None
    except (yaml.YAMLError, ValueError) as error:
        raise NotReadable(" ".join(str(error).split())) from None


class Lines:
    """Where things are in a file that `load` reads. What is missing is where it would be: at the thing around it."""

    STEP = re.compile(r"[^.\[\]]+|\[\d+\]")

    def __init__(self, raw: bytes) -> None:
        self._root: Any = yaml.compose(raw.decode("utf-8-sig"), _Loader)

    def line_of(self, path: str) -> int:
        """The line, from 1 on, of a path such as `models[0].routes[1].weight`."""
        node, line = self._root, 1
        for step in self.STEP.findall(path):
            node, line = self._into(node, step, line)
            if node is None:
                break
        return line

    @staticmethod
    def _into(node: Any, step: str, line: int) -> tuple[Any, int]:
        """The node a step further and its line; None where there is no such thing."""
        if isinstance(node, yaml.SequenceNode) and step.startswith("["):
            position = int(step[1:-1])
            if position < len(node.value):
                return node.value[position], node.value[position].start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == step:
                    return value, key.start_mark.line + 1
        return None, line


def expand(text: str, variables: Mapping[str, str] | None) -> str:
    """The text with each `${NAME}` replaced; ValueError names what is missing or not to be had.

    `variables` None: nothing is expanded here (whoever uploads a file must not read the server's environment).
    """

    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        if variables is None:
            raise ValueError(
                _("%(name)s is expanded by `manage.py apply` only; write the value itself here", name=match[0])
            )
        if name in OWN_SETTINGS or name.startswith("HOPBASE_"):
            raise ValueError(
                _("%(name)s is a setting of HopBase itself and is never read; use another variable", name=match[0])
            )
        if not variables.get(name):
            raise ValueError(_("the environment variable %(name)s is not set; set it and apply again", name=name))
        return variables[name]

    return VARIABLE.sub(value_of, text)


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _exact(dumper: yaml.SafeDumper, number: Decimal) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:float", f"{number:f}")


def _moment(dumper: yaml.SafeDumper, moment: dt.datetime) -> yaml.Node:
    """In UTC and to the second, as the file's examples are; finer moments keep their fraction."""
    text = moment.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
    return dumper.represent_scalar("tag:yaml.org,2002:timestamp", text)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Line breaks as escapes: folded ones do not all read back, and are hard to read in a list."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if LINE_BREAK.search(text) else None)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(Decimal, _exact)
_Dumper.add_representer(dt.datetime, _moment)


def dump(value: Any) -> str:
    """YAML that `load` reads back to the same value, with fields in their order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
