"""What passes between model and world: messages, tool calls, and what a model said (`Action`)."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue

__all__ = ["Action", "ImagePart", "Message", "ParseError", "Part", "TextPart", "ToolCall", "ToolSpec", "text_of"]


class _Open(BaseModel):
    """What an instance is for the moment in which it gets its parts: of the same shape, and not frozen."""

    __setattr__, __delattr__ = object.__setattr__, object.__delattr__  # pydantic's own are a multiple slower


_new = object.__new__


class _Frozen(BaseModel):
    """Which fields were given is not kept: a set in every message would be a tenth of an episode's memory."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    _all: ClassVar[set[str]]

    @classmethod
    def __pydantic_init_subclass__(cls, **_kwargs: object) -> None:
        cls._all = set(cls.model_fields)

    def model_post_init(self, _context: object) -> None:
        """Share one set among all instances; pydantic copies it before it changes it."""
        object.__setattr__(self, "__pydantic_fields_set__", self._all)

    @classmethod
    def of_known(cls, fields: dict[str, Any]) -> Self:
        """One of all its fields by name, whose values are known to be right: nothing is looked at or filled in.

        Every turn makes a call and a message; validating what was just checked, or made, takes four times as long.
        """
        made: Any = _new(_Open)
        made.__dict__ = fields
        made.__pydantic_fields_set__ = cls._all
        made.__pydantic_extra__ = made.__pydantic_private__ = None
        made.__class__ = cls
        return made  # type: ignore[no-any-return]


class TextPart(_Frozen):
    """A piece of text inside a multi-part message."""

    type: Literal["text"] = "text"
    text: str


class ImagePart(_Frozen):
    """An image, stored once by content hash: `sha256` names the bytes, `media_type` their format."""

    type: Literal["image"] = "image"
    sha256: str
    media_type: str = "image/png"


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]


class ToolSpec(_Frozen):
    """A tool as a model sees it: name, description, JSON schema of its arguments (an object schema)."""

    name: str
    description: str
    parameters: dict[str, JsonValue]


class ToolCall(_Frozen):
    """One call of a tool by a model."""

    name: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    id: str = ""


class ParseError(_Frozen):
    """Why a model's text is not a call; it is shown to the model as data."""

    message: str
    text: str = ""


class Message(_Frozen):
    """One message of a conversation, in the roles every chat template knows."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | tuple[Part, ...] = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""

    @classmethod
    def told(cls, text: str, call: str | None = None) -> "Message":
        """What a world says in words: the answer to a call, by its id, or to nobody's."""
        role, name = ("user", "") if call is None else ("tool", call)
        return cls.of_known({"role": role, "content": text, "tool_calls": (), "tool_call_id": name})


class Action(_Frozen):
    """What the model said: an assistant message with its parsed tool calls, or the parse error.

    A parse error is data: the environment answers it with an observation.

    spent: what saying it took, by name ("prompt_tokens", "completion_tokens", "usd"), where a world has a use for
        that: it is told of an actor that was given an agent of its own (`envgym.cast`), and of nobody else.
    """

    message: Message
    error: ParseError | None = None
    spent: tuple[tuple[str, float], ...] = ()

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The parsed tool calls, in order."""
        return self.message.tool_calls

    @property
    def text(self) -> str:
        """The plain text of the message."""
        return text_of(self.message)

    @classmethod
    def say(cls, text: str) -> "Action":
        """An action that is plain text."""
        return cls(message=Message(role="assistant", content=text))

    @classmethod
    def call(cls, name: str, /, **arguments: JsonValue) -> "Action":
        """An action that is one tool call."""
        call = ToolCall(name=name, arguments=arguments)
        return cls(message=Message(role="assistant", tool_calls=(call,)))


def text_of(message: Message) -> str:
    """The text of a message, parts joined; images are skipped."""
    if isinstance(message.content, str):
        return message.content
    return "".join(part.text for part in message.content if isinstance(part, TextPart))
