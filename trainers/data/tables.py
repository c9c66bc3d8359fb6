"""Tables of texts, `.tsv` and `.csv`, whose first line names the languages of their columns."""

import csv
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.files import kind_of
from keras_transformer.trainers.data.catalogues import OtherLanguagesError

TABLES = (".tsv", ".csv")
ENCLOSED = re.compile(r'"(?=.*[",].)(?:[^"]|"")*"')  # with a quote or a comma in it


def are_quoted(lines: Iterator[str]) -> bool:
    """Returns whether quotes enclose texts of a TSV file, as spreadsheets write it.

    Then all texts with a quote are enclosed, and their own quotes are doubled; of Excel, also all
    texts with a comma.
    """
    is_doubled = is_enclosed = has_commas = False
    for text in itertools.chain.from_iterable(line.split("\t") for line in lines):
        if '"' not in text:
            has_commas |= "," in text
        elif ENCLOSED.fullmatch(text):
            is_enclosed = True
            is_doubled |= '""' in text[1:-1]
        else:
            return False
    return is_doubled or (is_enclosed and not has_commas)


def has_quoted_names(header: str) -> bool:
    """Returns whether quotes enclose all names of columns in a TSV file: perhaps all texts."""
    return all(re.fullmatch('".+"', name.strip()) for name in header.split("\t"))


def read_table(
    path: Path, lines: Iterator[str], source: str, target: str, quoted: bool
) -> Iterator[tuple[str, str]]:
    """Yields the texts of two columns, in the order of `source` and `target`.

    If not `quoted`, quotes are text.
    """
    csv.field_size_limit(sys.maxsize)  # of the whole process
    lines = (line.replace("\r", " ") + "\n" for line in lines)
    header = next(lines, "")
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    form: dict[str, Any] = {"delimiter": "\t", "quoting": quoting}
    if kind_of(path) == ".csv":
        form = {"skipinitialspace": True}
        named = {mark: next(csv.reader([header], delimiter=mark, **form), []) for mark in ",;\t"}
        suitable = (m for m, names in named.items() if {source, target} <= {*map(str.strip, names)})
        form["delimiter"] = next(suitable, ",")
    rows = csv.reader(itertools.chain([header], lines), strict=True, **form)
    before = 0
    try:
        columns = list(map(str.strip, next(rows)))
        if not {source, target} <= {*columns}:
            raise OtherLanguagesError(
                f"{path}: the first line must name the columns, {source} and {target} "
                f"among them. Received: {', '.join(columns)[:80]}"
            )
        if repeated := [name for name in (source, target) if columns.count(name) > 1]:
            raise InputError(f"{path}: the first line names {repeated[0]} more than once")
        sides, before = (columns.index(source), columns.index(target)), rows.line_num
        for row in filter(None, rows):
            place = f"{path}, line {rows.line_num}"
            if len(row) <= max(sides):
                raise InputError(f"{place}: a column is missing")
            if any(row[len(columns) :]):
                raise InputError(
                    f"{place}: more columns than the first line names. In a .csv file, quote a "
                    "text that has a comma"
                )
            one, other = (" ".join(row[side].splitlines()) for side in sides)
            yield one, other
            before = rows.line_num
    except csv.Error as error:
        raise InputError(
            f"{path}: after line {before}, a quote is not closed or does not enclose a column"
        ) from error
