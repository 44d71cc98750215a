"""Messages in which random text replaces every sentence, so that a test can show that no program decides by one."""

from __future__ import annotations

import secrets
from typing import Any

#: The fields of every message that hold a sentence for people. A job's `verdict` is one too, a straggler's is a code.
SENTENCES = frozenset(
    {
        "reason", "detail", "grandmaster_note", "utc_detail", "invalidation_reason", "evidence", "cause", "remedy", "text",
        "alignment_reason", "phase_reason", "groups_reason",
    }
)  # fmt: skip


def with_random_sentences(content: Any) -> Any:
    """The same JSON with a random text in place of each sentence; an absent or empty sentence stays so."""
    if isinstance(content, list):
        return [with_random_sentences(item) for item in content]
    if not isinstance(content, dict):
        return content
    sentences = SENTENCES | ({"verdict"} if "job_id" in content else set())
    return {
        key: secrets.token_hex(8) if key in sentences and value else with_random_sentences(value)
        for key, value in content.items()
    }
