"""
JSON to a message in half of pydantic's time: a hub decodes some thousand states of nodes a second.

pydantic's own engine checks every field by the same annotations, but as typed dictionaries; the message objects then get
those dictionaries as they are. Only for messages without validators of their own.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Annotated, Any, Generic, Literal, NotRequired, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, with_config
from pydantic_core import CoreConfig, SchemaValidator
from typing_extensions import TypedDict

from timesyncd.messages.node import Message

MessageType = TypeVar("MessageType", bound=Message)

_Fields = dict[str, Any]
_Build = Callable[[_Fields], BaseModel]


class FastDecoder(Generic[MessageType]):
    """
    Decodes messages of one type. It accepts what `model_validate_json` accepts, gives an equal message and raises the
    same ValidationError. Raises TypeError for a type with validators of its own.
    """

    def __init__(self, message_type: type[MessageType]) -> None:
        # pydantic keeps the last 16,384 short strings of all messages: those of a flood lie on as many pages of memory, which then
        # never return.
        schema = TypeAdapter(_fields_type(message_type, {})).core_schema
        self._validator = SchemaValidator(schema, CoreConfig(cache_strings="none"))
        self._build = _builder(message_type, {})

    def decode(self, payload: bytes) -> MessageType:
        """Raises ValidationError."""
        message: Any = self._build(self._validator.validate_json(payload))
        return message  # type: ignore[no-any-return]  # a builder makes the type that it was made for


def _fields_type(model: type[BaseModel], known: dict[type[BaseModel], Any]) -> Any:
    """A TypedDict with the fields of a model and of the models in it, and with its configuration."""
    if model in known:
        return known[model]
    decorators = model.__pydantic_decorators__
    if decorators.validators or decorators.field_validators or decorators.model_validators:
        raise TypeError(f"{model.__name__} has validators of its own")
    fields = {}
    for name, field in model.model_fields.items():
        annotation = _with_fields(field.annotation, known)
        for limit in field.metadata:
            annotation = Annotated[annotation, limit]
        fields[name] = annotation if field.is_required() else NotRequired[annotation]
    named: Any = model.__name__
    made = known[model] = with_config(model.model_config)(TypedDict(named, fields))  # type: ignore[operator]
    return made


def _with_fields(annotation: Any, known: dict[type[BaseModel], Any]) -> Any:
    """The annotation with a TypedDict in place of each model."""
    if _is_model(annotation):
        return _fields_type(annotation, known)
    origin, inner = get_origin(annotation), get_args(annotation)
    if not inner or origin is Literal or not any(_models_in(annotation)):
        return annotation
    if origin is Annotated:
        return Annotated[(_with_fields(inner[0], known), *annotation.__metadata__)]
    swapped = tuple(_with_fields(each, known) for each in inner)
    return Union[swapped] if origin in (Union, types.UnionType) else origin[swapped]  # noqa: UP007  made at run time


def _builder(model: type[BaseModel], known: dict[type[BaseModel], _Build]) -> _Build:
    """What makes a message of validated fields: pydantic's own constructor takes ten times as long."""
    if model in known:
        return known[model]
    nested = []
    for name, field in model.model_fields.items():
        for inner in _models_in(field.annotation):
            plain = _plain(field.annotation)
            is_list = get_origin(plain) is list
            if plain is not inner and not is_list:
                raise TypeError(f"{model.__name__}.{name}: a message, or a list of one type, can be made alone")
            nested.append((name, is_list, _builder(inner, known)))
    count, new, set_attribute = len(model.model_fields), model.__new__, object.__setattr__

    def build(fields: _Fields) -> BaseModel:
        given = set(fields)
        for name, is_list, build_one in nested:
            value = fields.get(name)
            if value is not None:
                fields[name] = [build_one(each) for each in value] if is_list else build_one(value)
        if len(fields) < count:
            fields = _with_defaults(model, fields)
        message = new(model)
        set_attribute(message, "__dict__", fields)
        set_attribute(message, "__pydantic_fields_set__", given)
        set_attribute(message, "__pydantic_extra__", None)
        set_attribute(message, "__pydantic_private__", None)
        return message

    known[model] = build
    return build


def _with_defaults(model: type[BaseModel], fields: _Fields) -> _Fields:
    """In the order of the model's fields, in which they are published."""
    return {
        name: fields[name] if name in fields else field.get_default(call_default_factory=True)
        for name, field in model.model_fields.items()
    }


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if _is_model(annotation):
        return [annotation]
    return [model for each in get_args(annotation) for model in _models_in(each)]


def _plain(annotation: Any) -> Any:
    """Without Annotated, and without `| None`."""
    inner = [each for each in get_args(annotation) if each is not types.NoneType]
    is_wrapped = get_origin(annotation) in (Annotated, Union, types.UnionType)
    return _plain(inner[0]) if is_wrapped else annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
