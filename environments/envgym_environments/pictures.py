"""Pictures in observations: a message that shows one beside its text, and the bytes behind it (`Step.images`)."""

import hashlib

from envgym.messages import ImagePart, Message, TextPart, text_of

__all__ = ["pictured"]


def pictured(message: Message, image: bytes) -> tuple[Message, dict[str, bytes]]:
    """The message with a PNG after its text, and the PNG by its sha256; no byte of it is changed."""
    name = hashlib.sha256(image).hexdigest()
    content = (TextPart(text=text_of(message)), ImagePart(sha256=name))
    return message.model_copy(update={"content": content}), {name: image}
