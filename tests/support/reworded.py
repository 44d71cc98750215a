"""Messages with random text in place of every sentence, so that a test can show that no program decides by one."""

from __future__ import annotations

import random
import string
from dataclasses import replace
from typing import Any, TypeVar

from timesyncd.ipc.job_segment import Plan
from timesyncd.messages.node import Message

M = TypeVar("M", bound=Message)

#: The fields of messages that hold a sentence for people. An alarm's text is the device's own.
SENTENCES = {
    "reason", "invalidation_reason", "alignment_reason", "phase_reason", "groups_reason", "place_reason", "verdict",
    "detail", "utc_detail", "grandmaster_summary", "evidence", "cause", "remedy",
}  # fmt: skip
#: `verdict` and `text` are sentences in these messages alone.
OF_MESSAGE = {"verdict": {"JobState"}, "text": {"ChainStep"}}

LETTERS = string.ascii_letters + string.digits + " .,:;-"
RANDOM = random.Random(1588)


def reworded(message: M) -> M:
    """The same message with other sentences. Where there is none (empty or null) there is still none."""
    return message.model_copy(
        update={
            name: _reworded_value(type(message).__name__, name, getattr(message, name))
            for name in type(message).model_fields
        }
    )


def _reworded_value(owner: str, name: str, value: Any) -> Any:
    is_sentence = name in SENTENCES | set(OF_MESSAGE) and owner in OF_MESSAGE.get(name, {owner})
    if isinstance(value, str):
        return "".join(RANDOM.choices(LETTERS, k=40)) if is_sentence and value else value
    if isinstance(value, Message):
        return reworded(value)
    if isinstance(value, Plan):
        return replace(value, reason=_reworded_value("Plan", "reason", value.reason))
    if isinstance(value, list):
        return [_reworded_value(owner, name, item) for item in value]
    return value
