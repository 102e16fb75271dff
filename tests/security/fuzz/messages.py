"""Messages of the API that are nearly right: changed in their fields and in their bytes."""

from collections.abc import Iterator
from random import Random
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_STRINGS: Final = (
    "",
    " ",
    "\0",
    "a\0b",
    "é",
    "😀" * 70,
    "a" * 129,
    "a" * 257,
    "a" * 2000,
    "*",
    "nobody",
    "\u202e",
    "0" * 36,
    "x' OR 1=1 --",
)
_INTS: Final = (
    0,
    1,
    -1,
    2,
    7,
    100,
    101,
    256,
    1000,
    65_536,
    2**31 - 1,
    -(2**31),
    2**53,
    2**63 - 1,
    -(2**63),
    86_400_000,
    300_000,
)
_DOUBLES: Final = (0.0, -0.0, -1.0, 1e308, 1e-320, float("nan"), float("inf"), float("-inf"))
_PAYLOADS: Final = (
    b"",
    b"1",
    b"null",
    b"{",
    b'"\\u0000"',
    b'"\\ud800"',
    b"\xff",
    b"[" * 65 + b"]" * 65,
    b"9" * 641,
    b'{"a":1,"a":2}',
    b"NaN",
    b"1" + b" " * 70_000,
)
_WIRE: Final = (
    b"\0",
    b"\xff",
    b"\x80" * 11,
    b"\x0a\xff\xff\xff\xff\x0f",
    b"\x0b",
    b"\x0c",
    b"\xfa\xff\xff\xff\x0f\x00",
    b"\x08\x96\x01",
    b"\x0a" * 200,
)
_CHANGES_32: Final = {FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1), FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1)}
_CHANGES_64: Final = {FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1), FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1)}


class Mutator:
    """Changes messages; the same seed makes the same changes."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def bytes_of(self, message: Message) -> bytes:
        """The bytes of a copy that was changed."""
        random = self._random
        changed = type(message)()
        changed.CopyFrom(message)
        for _ in range(random.choice((0, 1, 1, 1, 2, 4))):
            self._change(random.choice(list(_parts(changed))))
        data = changed.SerializeToString()
        if random.random() < 0.3:
            for _ in range(random.choice((1, 1, 3))):
                data = self._damage(data)
        return data

    def _change(self, message: Message) -> None:
        """Changes one field."""
        random = self._random
        fields: Any = message.DESCRIPTOR.fields
        if not fields:
            return
        about = random.choice(fields)
        if about.is_repeated:
            self._change_list(message, about)
        elif random.random() < 0.15:
            message.ClearField(about.name)
        elif about.message_type is not None:
            getattr(message, about.name).SetInParent()
        else:
            setattr(message, about.name, self._value(about))

    def _change_list(self, message: Message, about: FieldDescriptor) -> None:
        random, items = self._random, getattr(message, about.name)
        match random.randrange(4):
            case 0:
                del items[:]
            case 1 if len(items):
                items.extend([items[0]] * random.choice((1, 3, 130)))
            case 2 if about.message_type is not None:
                items.add()
            case _ if about.message_type is None:
                items.append(self._value(about))

    def _value(self, about: FieldDescriptor) -> Any:
        random = self._random
        match about.cpp_type:
            case FieldDescriptor.CPPTYPE_BOOL:
                return random.random() < 0.5
            case FieldDescriptor.CPPTYPE_STRING:
                return random.choice(_PAYLOADS if about.type == FieldDescriptor.TYPE_BYTES else _STRINGS)
            case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
                return random.choice(_DOUBLES)
            case FieldDescriptor.CPPTYPE_ENUM:
                return random.choice((0, 1, 2, 3, 99, -1, 2**31 - 1))
        least, most = (_CHANGES_32 | _CHANGES_64)[about.cpp_type]
        return min(max(random.choice(_INTS), least), most)

    def _damage(self, data: bytes) -> bytes:
        random = self._random
        place = random.randrange(len(data) + 1)
        end = min(len(data), place + random.choice((1, 1, 4, 40)))
        match random.randrange(5):
            case 0:
                return data[:place] + random.choice(_WIRE) + data[place:]
            case 1:
                return data[:place] + data[end:]
            case 2:
                return data[:place] + bytes([random.randrange(256)]) + data[place + 1 :]
            case 3:
                return data[:place] + data[place:end] * random.choice((2, 20)) + data[end:]
        return data[:place]


def _parts(message: Message) -> Iterator[Message]:
    """The message and every message in it."""
    yield message
    for about, value in message.ListFields():
        if about.message_type is not None and not about.message_type.GetOptions().map_entry:
            for one in value if about.is_repeated else (value,):
                yield from _parts(one)


def retarget(message: Message, tenant_id: str, **values: Any) -> None:
    """Lets a message, and all in it, speak of another tenant, and of these values where it has fields of their names."""
    for part in _parts(message):
        names = part.DESCRIPTOR.fields_by_name
        for name, value in {"tenant_id": tenant_id, **values}.items():
            if name not in names:
                continue
            if isinstance(value, Message):
                if part.HasField(name) and isinstance(getattr(part, name), type(value)):
                    getattr(part, name).CopyFrom(value)
            elif getattr(part, name):
                setattr(part, name, value)
