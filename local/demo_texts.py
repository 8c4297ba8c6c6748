"""The texts that the demo ingests: sentences about Berlin, a file about Potsdam, and pages of this project's documentation."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypedDict

MAX_TEXT_BYTES: Final = 8192  # of one document, as the gateway limits it


class Document(TypedDict):
    """A document in the form that the gateway ingests."""

    id: str
    text: str
    metadata: dict[str, str | int]


BERLIN: Final[tuple[Document, ...]] = tuple(
    Document(id=name, text=text, metadata={"city": "Berlin", "kind": kind, "year": year})
    for name, kind, year, text in (
        ("brandenburger-tor", "gate", 1791, "Das Brandenburger Tor steht im Bezirk Mitte am Pariser Platz, gebaut 1791."),
        ("tiergarten", "park", 1742, "Der Tiergarten ist der größte innerstädtische Park Berlins, 210 Hektar."),
        ("kudamm", "street", 1886, "Der Kurfürstendamm im Westen ist die bekannteste Einkaufsstraße."),
        (
            "fernsehturm",
            "tower",
            1969,
            "Der Fernsehturm am Alexanderplatz ist mit 368 Metern das höchste Bauwerk Deutschlands.",
        ),
        ("museumsinsel", "museum", 1830, "Die Museumsinsel in der Spree zählt seit 1999 zum Welterbe der UNESCO."),
    )
)

POTSDAM: Final = """# Potsdam

Potsdam liegt südwestlich von Berlin an der Havel.

## Sanssouci

Schloss Sanssouci wurde 1745 bis 1747 für Friedrich den Großen gebaut.
Der König ließ es als Sommersitz über den Terrassen eines Weinbergs errichten.

## Holländisches Viertel

Das Holländische Viertel besteht aus 134 Häusern aus rotem Backstein, begonnen 1733.

## Filmpark

In Babelsberg steht seit 1912 das älteste große Filmstudio der Welt.
"""
"""The content of a file to upload."""


PAGES: Final = ("concepts", "rag", "sessions", "uploads")
"""The pages of the documentation that the demo ingests. Embedding all of them would take most of its time."""


def documentation(folder: Path, pages: Sequence[str] = PAGES) -> list[Document]:
    """Return one document for each section of these Markdown files in ``folder``. Split sections that are over the size limit."""
    return [document for page in pages for document in _sections(folder / f"{page}.md")]


def _sections(file: Path) -> Iterator[Document]:
    for number, section in enumerate(re.split(r"(?m)^(?=#{1,3} )", file.read_text())):
        for piece, text in enumerate(_pieces(section.strip())):
            if text.count("\n"):  # more than a heading
                heading = text.splitlines()[0].strip("# ")
                yield Document(id=f"{file.stem}.{number}.{piece}", text=text, metadata={"file": file.name, "section": heading})


def _pieces(section: str) -> Iterator[str]:
    """Split a section at paragraphs into pieces of at most ``MAX_TEXT_BYTES``. Split a longer paragraph between characters."""
    piece = ""
    for paragraph in section.split("\n\n"):
        for part in _cut(paragraph):
            joined = f"{piece}\n\n{part}" if piece else part
            if len(joined.encode()) > MAX_TEXT_BYTES:
                yield piece
                piece = part
            else:
                piece = joined
    if piece:
        yield piece


def _cut(paragraph: str) -> Iterator[str]:
    encoded = paragraph.encode()
    while encoded:
        part = encoded[:MAX_TEXT_BYTES].decode(errors="ignore")
        yield part
        encoded = encoded[len(part.encode()) :]
