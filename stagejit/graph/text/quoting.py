"""Names of users' functions in texts: any string may be one.

Input: a name. Output: how texts have it, and back. Invariant: it is on one line, without spaces
unless it is quoted, and comes back as it was.
"""

from __future__ import annotations

import json

# A name in a text, as a pattern.
QUOTED = r'"[^"\\]*(?:\\.[^"\\]*)*"|[^\s"]\S*'


def quoted(name: str) -> str:
    """As it is where it is a word, else as a string of JSON."""
    word = name.isprintable() and " " not in name and not name.startswith('"')
    return name if name and word else json.dumps(name)


def unquoted(text: str) -> str:
    """The name."""
    return str(json.loads(text)) if text.startswith('"') else text
