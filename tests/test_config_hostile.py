"""Files that are no search space, by accident or on purpose, end in a sentence: never in a traceback or a hang."""

import json
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from specsearch._search_space_file.models import SECTIONS
from specsearch.config import (
    load_study,
)
from specsearch.errors import ConfigError
from tests.search_space_samples import GOOD, edited, load, problems


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"# nothing\n", "is empty"),
        (b"- a\n- b\n", "line 1: expected sections such as"),
        (b"just a text", "line 1: expected sections such as"),
        (b"a: 1\n---\nb: 2\n", "line 2: a second document begins"),
        (b"a: [1, 2\nb: 3\n", "line 2: not valid YAML"),
        (b"a:\n\t- b\n", "line 2: indent with spaces, not tabs"),
        (b"a:\n  b: 1\n  \tc: 2\n", "line 3: indent with spaces, not tabs"),
        (b"a:\t1\n", "line 1: not valid YAML"),
        (b"name: \xff\xfe", "line 1: not UTF-8 text"),
        (b"name: a\nb: \x00", "line 2: the character U+0000 is not allowed"),
        (b'name: "\\0"', "line 1: name: holds an unprintable character"),
        (b'name: "\\ud800"', "line 1: name: holds an unprintable character"),
        (b'name: "\\U7fffffff"', "not valid YAML"),
        (b"\x7fELF\x02\x01\x01\x00", "line 1: the character U+007F is not allowed"),
        (
            b"name: !!python/object/apply:os.system [ls]",
            "line 1: name: the tag 'tag:yaml.org,2002:python/object/apply:os.system'",
        ),
        (b"name: !mine x", "line 1: name: the tag '!mine' is not allowed"),
        (b"engine: &a {b: *a}", "line 1: the alias *a stands inside its own anchor"),
        (b"engine: *a", "line 1: the alias *a has no anchor before it"),
        (b"engine: {<<: {a: 1}}", "line 1: engine.<<: merge keys are not supported"),
        (b"? [a, b]\n: 1\n", "line 1: ?: a key must be a single word"),
        (b"? {a: b}\n: 1\nname: {}\n", "a key must be a single word"),
        (b"[" * 5000, "line 1: nested deeper than 16 levels"),
        (b"a: " * 5000, "not valid YAML"),
        (b"- " * 5000 + b"a", "nested deeper than 16 levels"),
        (b"? " * 5000 + b"a", "nested deeper than 16 levels"),
        (b"a: [" + b"x, " * 30_000 + b"]", "more than 20000 values"),
        (b"name: x" * 200_000, "is larger than 1 MiB"),
        (b"name: " + b"9" * 6000, "an integer has at most 18 digits"),
        (b"%YAML 99999999.1\n---\na: 1\n", "not valid YAML"),
        (b"%YAML 1." + b"9" * 5000 + b"\n---\na: 1\n", "not valid YAML"),
    ],
)
def test_a_hostile_file_ends_in_a_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "space.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_study(path)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 2000


def test_a_billion_laughs_end_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    lines = ["a0: &a0 [ha]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 11)]
    path.write_text("\n".join(lines))
    began = time.monotonic()
    with pytest.raises(ConfigError, match="aliases"):
        load_study(path)
    assert time.monotonic() - began < 10


def test_thousands_of_mistakes_are_counted_and_not_all_shown(tmp_path: Path) -> None:
    found = problems(tmp_path, GOOD + "".join(f"k{number}: 1\n" for number in range(3000)))
    assert len(found) == 51
    assert found[-1] == "and 2950 more"


def test_a_folder_a_missing_file_and_a_device_are_no_search_space(tmp_path: Path) -> None:
    (tmp_path / "kimi.yaml").write_text(GOOD)
    for path, said in {
        tmp_path: "is a folder",
        tmp_path / "kmi.yaml": "does not exist; did you mean 'kimi.yaml'?",
        tmp_path / "no" / "such.yaml": "does not exist",
        Path("/dev/zero"): "is not a regular file",
        tmp_path / ("x" * 300): "cannot be read: File name too long",
        tmp_path / "a\0b": "is no file name",
    }.items():
        with pytest.raises(ConfigError) as caught:
            load_study(path)
        assert said in str(caught.value)


@pytest.mark.parametrize(
    "constraint",
    ["[1]*9999999999 == 1 or num_steps > 1", "num_steps * 1e308 * 1e308 > 1 or " + "9" * 400 + "/num_steps > 1"],
)
def test_a_hostile_constraint_ends_in_a_sentence(tmp_path: Path, constraint: str) -> None:
    """Arithmetic on lists would take all memory; numbers out of range would be a traceback."""
    assert (
        "constraints[0]"
        in problems(tmp_path, edited("num_draft_tokens <= 8 or eagle_topk > 1", f"'({constraint}) and 1 > 2'"))[0]
    )


words = st.sampled_from(
    [
        *GOOD.replace("{", " { ").replace("}", " } ").split(),
        "&a",
        "*a",
        "<<:",
        "!!x",
        "? ",
        "- ",
        "\t",
        "'",
        '"',
        "|",
        ">",
        "%",
        "~",
        "@",
    ]
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cut=st.integers(0, len(GOOD)),
    length=st.integers(0, 80),
    junk=st.lists(words, max_size=6),
    glue=st.sampled_from(["", " ", "\n", "\n  "]),
)
@example(cut=0, length=0, junk=[], glue="")
def test_a_damaged_file_loads_or_ends_in_a_config_error(
    tmp_path: Path, cut: int, length: int, junk: list[str], glue: str
) -> None:
    text = GOOD[:cut] + glue + glue.join(junk) + glue + GOOD[cut + length :]
    with suppress(ConfigError):
        load(tmp_path, text)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.one_of(
        st.binary(max_size=60), st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass"))
    )
)
def test_arbitrary_bytes_end_in_a_config_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "space.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        load_study(path)


json_like = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.sampled_from(["EAGLE3", "unset", "none", "chat", "1,0,0,0", ""]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["type", "values", "a"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(section=st.sampled_from(list(SECTIONS)), value=json_like)
def test_a_section_of_the_wrong_shape_loads_or_ends_in_a_config_error(
    tmp_path: Path, section: str, value: object
) -> None:
    lines = GOOD.splitlines(keepends=True)
    start = next((n for n, line in enumerate(lines) if line.startswith(f"{section}:")), len(lines))
    end = next((n for n in range(start + 1, len(lines)) if not lines[n].startswith(" ")), len(lines))
    text = "".join([*lines[:start], f"{section}: {json.dumps(value)}\n", *lines[end:]])
    with suppress(ConfigError):
        load(tmp_path, text)
