"""The questions that a task can ask its caller's client, in the shapes of MCP 2026-07-28, and their answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, Literal, TypedDict, TypeVar, cast

from store_service.client.facts import ClientCapabilities
from store_service.client.outcomes import INTERNAL_ERROR, ProtocolError

MISSING_CAPABILITY: Final = -32021
"""The JSON-RPC code of a question of a kind that the client did not declare."""

APPROVAL: Final = "dev.tenure/approval"
"""The member of a form's `_meta` that makes it an approval. The bridge's README documents it."""

Capability = tuple[str, ...]
A_co = TypeVar("A_co", covariant=True)

_PRIMITIVES: Final = ("string", "number", "integer", "boolean", "array")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a person made of a form or of a URL."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] = field(default_factory=dict)
    """The form's values; empty unless the form was accepted."""

    @property
    def accepted(self) -> bool:
        """Whether the person agreed; the other two are `decline` (no) and `cancel` (no choice)."""
        return self.action == "accept"


@dataclass(frozen=True, slots=True)
class Sample:
    """What the client's model said."""

    role: str
    content: Any
    """One content block, or a list of them."""
    model: str
    stop_reason: str | None

    @property
    def text(self) -> str:
        """All text of the content."""
        blocks = self.content if isinstance(self.content, list) else [self.content]
        return "".join(block["text"] for block in blocks if block.get("type") == "text")


@dataclass(frozen=True, slots=True)
class Root:
    """A folder or file that the client lets its servers work on."""

    uri: str
    name: str | None


class Question(ABC, Generic[A_co]):
    """Something to ask, by `ctx.ask_all` or the method of its kind."""

    __slots__ = ()
    method: ClassVar[str]

    @abstractmethod
    def params(self) -> dict[str, Any]:
        """The parameters of the request."""

    @abstractmethod
    def needs(self) -> list[Capability]:
        """What the client must have declared."""

    @abstractmethod
    def read(self, response: dict[str, Any]) -> A_co:
        """The client's answer. Raises KeyError, TypeError or ValueError when it is none."""


@dataclass(frozen=True, slots=True)
class Form(Question[Answer]):
    """A form for a person. `schema` is a JSON Schema: an object whose properties are plain values, without nesting.

    One that is an `approval` is answered by the role that the tool's route names for that, not by the caller, whose client
    need not show forms then; where the route names none it is the caller's, as any other.
    """

    method: ClassVar[str] = "elicitation/create"
    message: str
    schema: Mapping[str, Any]
    approval: bool = False

    def __post_init__(self) -> None:
        properties = self.schema.get("properties")
        if self.schema.get("type") != "object" or not isinstance(properties, Mapping):
            raise ValueError('the schema of a form must have "type": "object" and "properties"')
        for name, each in properties.items():
            if not isinstance(each, Mapping) or each.get("type") not in _PRIMITIVES:
                raise ValueError(f"property {name!r} of a form must have a type of {', '.join(_PRIMITIVES)}")

    def params(self) -> dict[str, Any]:  # noqa: D102 (as in Question, here and below)
        params = {"mode": "form", "message": self.message, "requestedSchema": self.schema}
        return {**params, "_meta": {APPROVAL: True}} if self.approval else params

    def needs(self) -> list[Capability]:  # noqa: D102
        return [] if self.approval else [("elicitation", "form")]

    def read(self, response: dict[str, Any]) -> Answer:  # noqa: D102
        return _read_answer(response)


@dataclass(frozen=True, slots=True)
class Url(Question[Answer]):
    """A page that a person is asked to open, for what must not pass through the client. It answers without content."""

    method: ClassVar[str] = "elicitation/create"
    message: str
    url: str

    def params(self) -> dict[str, Any]:  # noqa: D102
        return {"mode": "url", "message": self.message, "url": self.url}

    def needs(self) -> list[Capability]:  # noqa: D102
        return [("elicitation", "url")]

    def read(self, response: dict[str, Any]) -> Answer:  # noqa: D102
        return _read_answer(response)


class SamplingOptions(TypedDict, total=False):
    """What may be said of a turn of the client's model beside its messages, as MCP says."""

    system_prompt: str
    temperature: float
    stop_sequences: Sequence[str]
    model_preferences: Mapping[str, Any]
    include_context: Literal["none", "thisServer", "allServers"]
    metadata: Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]]
    tool_choice: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling(Question[Sample]):
    """A turn of the client's model. `messages` are MCP's, or one text of the user; the rest as MCP says."""

    method: ClassVar[str] = "sampling/createMessage"
    messages: str | Sequence[Mapping[str, Any]]
    max_tokens: int
    system_prompt: str | None = None
    temperature: float | None = None
    stop_sequences: Sequence[str] | None = None
    model_preferences: Mapping[str, Any] | None = None
    include_context: Literal["none", "thisServer", "allServers"] | None = None
    metadata: Mapping[str, Any] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: Mapping[str, Any] | None = None

    def params(self) -> dict[str, Any]:  # noqa: D102
        messages = self.messages
        if isinstance(messages, str):
            messages = [{"role": "user", "content": {"type": "text", "text": messages}}]
        optional = {
            "systemPrompt": self.system_prompt,
            "temperature": self.temperature,
            "stopSequences": self.stop_sequences,
            "modelPreferences": self.model_preferences,
            "includeContext": self.include_context,
            "metadata": self.metadata,
            "tools": self.tools,
            "toolChoice": self.tool_choice,
        }
        given = {name: value for name, value in optional.items() if value is not None}
        return {"messages": messages, "maxTokens": self.max_tokens, **given}

    def needs(self) -> list[Capability]:  # noqa: D102
        needed: list[Capability] = [("sampling",)]
        if self.tools is not None or self.tool_choice is not None:
            needed.append(("sampling", "tools"))
        if self.include_context not in (None, "none"):
            needed.append(("sampling", "context"))
        return needed

    def read(self, response: dict[str, Any]) -> Sample:  # noqa: D102
        return _read_sample(response)


@dataclass(frozen=True, slots=True)
class Roots(Question[list[Root]]):
    """Which folders and files the client lets its servers work on."""

    method: ClassVar[str] = "roots/list"

    def params(self) -> dict[str, Any]:  # noqa: D102
        return {}

    def needs(self) -> list[Capability]:  # noqa: D102
        return [("roots",)]

    def read(self, response: dict[str, Any]) -> list[Root]:  # noqa: D102
        return _read_roots(response)


def check_declared(client: ClientCapabilities, questions: Iterable[Question[Any]]) -> None:
    """Raises ProtocolError -32021, which names what is missing, unless the client declared all that they need."""
    missing: dict[str, Any] = {}
    names: list[str] = []
    for path in dict.fromkeys(path for question in questions for path in question.needs()):
        if not client.can(*path):
            names.append(".".join(path))
            inner = missing
            for name in path:
                inner = inner.setdefault(name, {})
    if missing:
        message = f"the client did not declare what the tool must ask for: {', '.join(names)}"
        raise ProtocolError(MISSING_CAPABILITY, message, {"requiredCapabilities": missing})


def read_response(name: str, question: Question[A_co], response: Any) -> A_co:
    """The answer to a question. Raises ProtocolError when it is none."""
    try:
        return question.read(response)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ProtocolError(INTERNAL_ERROR, f"the answer to {name!r} is no answer to {question.method}") from None


def read_as(method: str, response: Any) -> Any:
    """An answer to a question of this kind. Raises AttributeError, KeyError, TypeError or ValueError when it is none."""
    return _READERS[method](response)


def _read_answer(response: dict[str, Any]) -> Answer:
    action, content = response["action"], response.get("content") or {}
    if action not in ("accept", "decline", "cancel") or not isinstance(content, dict):
        raise ValueError
    return Answer(cast("Literal['accept', 'decline', 'cancel']", action), content)


def _read_sample(response: dict[str, Any]) -> Sample:
    content = response["content"]
    if not all(isinstance(block, dict) for block in (content if isinstance(content, list) else [content])):
        raise TypeError
    return Sample(response["role"], content, response["model"], response.get("stopReason"))


def _read_roots(response: dict[str, Any]) -> list[Root]:
    return [Root(root["uri"], root.get("name")) for root in response["roots"]]


_READERS: Final[Mapping[str, Callable[[dict[str, Any]], Any]]] = {
    Form.method: _read_answer,  # a URL's too
    Sampling.method: _read_sample,
    Roots.method: _read_roots,
}
