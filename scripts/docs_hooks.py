"""What mkdocs does besides: names in tables may break where their words end (mkdocs.yml)."""

from __future__ import annotations

import re
from typing import Any

CELL = re.compile(r"<t[dh][ >].*?</t[dh]>", flags=re.DOTALL)
TEXT = re.compile(r"(?<=>)[^<]+")
END_OF_A_WORD = re.compile(
    r"(?<=[A-Za-z])(?=[_./(:])|(?<=[=,\[/:])(?=[A-Za-z])|(?<=[a-z])(?=[A-Z])"
)


def on_page_content(html: str, **_: Any) -> str:
    return CELL.sub(lambda cell: TEXT.sub(with_places_to_break, cell[0]), html)


def with_places_to_break(text: re.Match[str]) -> str:
    return END_OF_A_WORD.sub("<wbr>", text[0])
