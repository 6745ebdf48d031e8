"""The operations on files: what they change, what they leave alone, and that the program stays the same."""

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.graphs.codemods import OPERATIONS, CannotRewrite
from everstep.graphs.same_code import same_meaning


def rewrite(operation: str, data: bytes, path: str = "a.py") -> bytes:
    """Apply an operation to a file."""
    return OPERATIONS[operation].rewrite(path, data, "MIT")


@pytest.mark.parametrize(
    ("operation", "before", "after"),
    [
        ("tidy-whitespace", b"a = 1  \nb = 2\t\n", b"a = 1\nb = 2\n"),
        ("tidy-whitespace", b"a = 1\r\nb = 2\r\n", b"a = 1\nb = 2\n"),
        ("tidy-whitespace", b"a = 1", b"a = 1\n"),
        ("tidy-whitespace", b"a = 1\n\n \n", b"a = 1\n"),
        ("tidy-whitespace", b"", b""),
        ("tidy-whitespace", b"x = '''a  \nb\t\n'''  \n", b"x = '''a  \nb\t\n'''\n"),
        ("tidy-whitespace", b"x = f'''a  \n{1}  \n'''  \n", b"x = f'''a  \n{1}  \n'''\n"),
        ("tidy-whitespace", b"a = 1\n\x0c\nb = 2 \n", b"a = 1\n\x0c\nb = 2\n"),
        ("tidy-whitespace", b"\xef\xbb\xbfa = 1 \n", b"\xef\xbb\xbfa = 1\n"),
        ("remove-encoding-lines", b"# -*- coding: utf-8 -*-\n\nimport os\n", b"import os\n"),
        ("remove-encoding-lines", b"#!/usr/bin/python\n# coding=utf-8\nimport os\n", b"#!/usr/bin/python\nimport os\n"),
        ("remove-encoding-lines", b"# -*- coding: latin-1 -*-\nimport os\n", b"# -*- coding: latin-1 -*-\nimport os\n"),
        ("remove-encoding-lines", b"import os\n# coding: utf-8\n", b"import os\n# coding: utf-8\n"),
        ("double-quotes", b"x = 'a' + r'\\d' + b'c'\n", b'x = "a" + r\'\\d\' + b"c"\n'),
        ("double-quotes", b"x = 'say \"hi\"'\n", b"x = 'say \"hi\"'\n"),
        ("double-quotes", b"x = f'{d}'\n", b"x = f'{d}'\n"),
        ("double-quotes", b"x = '''a'''\n", b"x = '''a'''\n"),
        ("double-quotes", b"x = ''\"a\"\n", b"x = ''\"a\"\n"),
        ("double-quotes", "s = 'é', 'ü'  # 'x'\n".encode(), 's = "é", "ü"  # \'x\'\n'.encode()),
        ("double-quotes", b"x = 'a'\r\ny = 'b'\r\n", b'x = "a"\r\ny = "b"\r\n'),
        ("double-quotes", "a = '\u2028'\nb = 'c'\n".encode(), 'a = "\u2028"\nb = "c"\n'.encode()),
        ("add-license-identifiers", b"import os\n", b"# SPDX-License-Identifier: MIT\nimport os\n"),
        ("add-license-identifiers", b"#!/bin/sh\nx\n", b"#!/bin/sh\n# SPDX-License-Identifier: MIT\nx\n"),
        ("add-license-identifiers", b"#!x", b"#!x\n# SPDX-License-Identifier: MIT\n"),
        ("add-license-identifiers", b"x = 1\r\n", b"# SPDX-License-Identifier: MIT\r\nx = 1\r\n"),
        ("add-license-identifiers", b"\xef\xbb\xbfx = 1\n", b"\xef\xbb\xbf# SPDX-License-Identifier: MIT\nx = 1\n"),
        ("add-license-identifiers", b"# SPDX-License-Identifier: MIT\n", b"# SPDX-License-Identifier: MIT\n"),
        ("add-license-identifiers", b"", b""),
    ],
)
def test_what_an_operation_does(operation: str, before: bytes, after: bytes) -> None:
    """Each operation does what it says, and applied again changes nothing more."""
    assert rewrite(operation, before) == after
    assert rewrite(operation, after) == after


def test_an_encoding_line_stays_first_when_a_license_is_added() -> None:
    """Python looks for an encoding in the first two lines only, so the identifier goes below it."""
    changed = rewrite("add-license-identifiers", b"# -*- coding: latin-1 -*-\nx = 'a'\n")
    assert changed.startswith(b"# -*- coding: latin-1 -*-\n# SPDX")


@pytest.mark.parametrize(
    ("path", "data", "reason"),
    [
        ("a.md", b"line  \nbreak\n", "handles"),
        ("a.py", b"x = 1\0 \n", "binary"),
        ("a.py", "é = 1 \n".encode("latin-1"), "not UTF-8"),
        ("a.py", b"# DO NOT EDIT\nx = 1 \n", "generated"),
        ("a.py", b"a = 1\rb = 2 \n", "carriage"),
        ("a.py", b"x = '''open \n", "not valid Python"),
    ],
)
def test_what_an_operation_leaves_alone(path: str, data: bytes, reason: str) -> None:
    """Files of another kind, binary, undecodable, generated or unreadable ones are refused with the reason."""
    with pytest.raises(CannotRewrite, match=reason):
        rewrite("tidy-whitespace", data, path)


@pytest.mark.parametrize(
    ("path", "before", "after", "same"),
    [
        ("a.py", b"x = 1\n", b"x  =  1 # c\n", True),
        ("a.py", b"x = 1\n", b"x = 2\n", False),
        ("a.py", b"x = '''a '''\n", b"x = '''a'''\n", False),
        ("a.py", b"print 'x'\n", b"print 'x'\n", False),
        ("a.py", b"return 1\n", b"return 1\n", False),
        ("a.json", b'{"a": 1.0}', b'{ "a":1.0 }\n', True),
        ("a.json", b'{"a": 1.0}', b'{"a": 1}', False),
        ("a.toml", b"a = '''x \n'''\n", b"a = '''x\n'''\n", False),
        ("a.rst", b"text \n", b"text\n", True),
    ],
)
def test_whether_two_versions_mean_the_same(path: str, before: bytes, after: bytes, same: bool) -> None:
    """Only what provably means the same passes; what cannot be read proves nothing."""
    assert same_meaning(path, before, after) is same


def installed_files() -> Iterator[Path]:
    """Source files of packages that are written in many styles."""
    for name in ("pygments", "click", "mako", "pydantic"):
        for file in importlib.metadata.distribution(name).files or ():
            path = Path(str(file.locate()))
            if path.suffix == ".py" and path.is_file():
                yield path


@pytest.mark.parametrize("operation", OPERATIONS)
def test_real_code_means_the_same_afterwards(operation: str) -> None:
    """On every tenth file of several installed packages the program stays the same, and once is enough."""
    changed = 0
    for path in list(installed_files())[::10]:
        before = path.read_bytes()
        try:
            after = rewrite(operation, before, path.name)
        except CannotRewrite:
            continue
        if after != before:
            changed += 1
            assert same_meaning(path.name, before, after), path
            assert rewrite(operation, after, path.name) == after, path
    assert changed or operation == "remove-encoding-lines"


PIECES = [*"x = 1 'a' \"b\" ''' \"\"\" f' \\ # { } ( ) é".split(), " ", "\t", "\n", "\r\n", "\x0c"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=24).map("".join), st.sampled_from(sorted(OPERATIONS)))
@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_no_text_is_ever_altered_in_meaning(text: str, operation: str) -> None:
    """Whatever valid Python an operation is given, the result is the same Python and a fixed point."""
    before = text.encode()
    ends_in_a_continuation = text.rstrip().endswith("\\")  # odd, and refused by the agent if it matters
    try:
        compile(before, "", "exec")
        after = rewrite(operation, before)
    except (SyntaxError, ValueError):
        return
    assert same_meaning("a.py", before, after) or ends_in_a_continuation
    assert rewrite(operation, after) == after
