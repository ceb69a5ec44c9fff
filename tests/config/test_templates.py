"""Templates: what they find, what they refuse, and that what goes in is never read again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft.config.templates import Missing, Template, names_a_place

SCOPE: dict[str, Any] = {
    "item": {"a": {"b": [0, 1, {"c-d": "x"}]}, "none": None, "odd key": 2, "text": "{{item.a}}", "unit": "°C"},
    "sample": {"output_text": "{{item.a.b[1]}}", "output_json": None, "output_tools": []},
}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{{item.a.b[2].c-d}}", "x"),
        ("{{ item.a.b[1] }} and {{item.a.b[0]}}", "1 and 0"),
        ("{{  item . unit }}", None),
        ("{{item.unit}}", "°C"),
        ("{{item.a.b}}", '[0, 1, {"c-d": "x"}]'),
        ("{{item.none}}", "null"),
        ("{{item[\"odd key\"]}}{{item['odd key']}}", "22"),
        ("{{sample.output_text}}", "{{item.a.b[1]}}"),
        ("{{item.text}}", "{{item.a}}"),
        ("{{}} {{ }} {{1}} {{ {x} }} {a} }}{{", "{{}} {{ }} {{1}} {{ {x} }} {a} }}{{"),
        ("", ""),
    ],
)
def test_what_goes_in(text: str, shown: str | None):
    if shown is None:
        with pytest.raises(ValueError, match="cannot be read from"):
            Template.read(text)
        return
    assert Template.read(text).render(SCOPE) == shown


@pytest.mark.parametrize(
    ("text", "in_sample"),
    [
        ("{{item.missing}}", False),
        ("{{item.a.b[3]}}", False),
        ("{{item.a[0]}}", False),
        ("{{item.a.b.c}}", False),
        ("{{item.none.x}}", False),
        ("{{sample.output_json}}", True),
        ("{{sample.output_json.price}}", True),
        ("{{sample.output_tools[0].function.name}}", True),
    ],
)
def test_a_place_that_is_not_there(text: str, in_sample: bool):
    with pytest.raises(Missing) as caught:
        Template.read(f"before {text}").render(SCOPE)
    assert (caught.value.in_sample, text in str(caught.value)) == (in_sample, True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("is {{reference}}?", "{{reference}} at character 4 names neither item nor sample"),
        ("{{items.a}}", "names neither item nor sample"),
        ("{{item.}}", "cannot be read from '.' on"),
        ("{{item.a[-1]}}", "cannot be read from '[-1]' on"),
        ("{{item.a..b}}", "cannot be read from '..b' on"),
        ("{{item[a]}}", "cannot be read from '[a]' on"),
    ],
)
def test_what_is_refused(text: str, says: str):
    with pytest.raises(ValueError, match=r".") as caught:
        Template.read(text)
    assert says in str(caught.value)


_KEYS = st.text(max_size=8)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(_JSON, st.data())
def test_every_place_is_found_by_its_path(value: Any, data: st.DataObject):
    """Walk down by chance, write the path down, and find the same value by it."""
    path, here = "", value
    while isinstance(here, dict | list) and here and data.draw(st.booleans()):
        step = data.draw(st.sampled_from(sorted(here) if isinstance(here, dict) else range(len(here))))
        path += f"[{json.dumps(step)}]"
        here = here[step]
    shown = Template.read("<{{item" + path + "}}>").render({"item": value, "sample": {}})
    assert shown == f"<{here if isinstance(here, str) else json.dumps(here, ensure_ascii=False)}>"


@given(st.text(alphabet="{} .[]itemsample\"'0a", max_size=40))
def test_a_text_is_itself_or_has_templates(text: str):
    try:
        template = Template.read(text)
    except ValueError:
        return
    if not template.places:
        assert template.render({}) == text


@given(st.text(max_size=30))
def test_what_goes_in_is_not_read_again(answer: str):
    scope = {"item": {"target": "secret"}, "sample": {"output_text": answer}}
    assert Template.read("{{sample.output_text}}").render(scope) == answer


def test_braces_of_python_are_no_templates():
    assert names_a_place("f'{{x}} {{{y}}}'") is None
    assert names_a_place("x = '{{ item.a }}'") == "{{ item.a }}"
