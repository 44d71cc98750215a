"""Exported documents as tests compare them with those in schemas/."""

from __future__ import annotations

import json
from typing import Any

import pydantic

_DESCRIBES_ALL = tuple(int(part) for part in pydantic.VERSION.split(".")[:2]) >= (2, 13)


def exported(text: str) -> Any:
    """
    The text itself. Under pydantic before 2.13, which describes no type that is not a model: the document without
    descriptions.
    """
    return text if _DESCRIBES_ALL else _without_descriptions(json.loads(text))


def _without_descriptions(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_descriptions(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {
        name: _without_descriptions(each)
        for name, each in node.items()
        if not (name == "description" and isinstance(each, str))
    }
