"""Hardware documents: every number with unit, origin and source; what is unknown says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfsearch.atoms.documents import Fact, Origin, load, parse, render, write
from tfsearch.core.errors import InternalError, NotSavedError, RequestError

CLOCK = """
vendor = "somebody"
models = [1, 2]

[clock]
value = 3
unit = "GHz"
origin = "measured"
source = "tfsearch calibrate"
conditions = "one core busy"

[bandwidth.l2]
unit = "B/cycle"
unavailable = "nobody has measured it"
"""


def test_facts_carry_unit_origin_source_and_conditions() -> None:
    document = parse(CLOCK, "somebody")
    fact = document.facts["clock"]
    assert (fact.value, fact.unit, fact.origin) == (3.0, "GHz", Origin.MEASURED)
    assert (fact.source, fact.conditions) == ("tfsearch calibrate", "one core busy")
    assert document.measured("clock")
    assert document.settings == {"vendor": "somebody", "models": [1, 2]}


def test_an_unavailable_number_is_no_number_and_says_why() -> None:
    document = parse(CLOCK, "somebody")
    assert document.get("bandwidth.l2") is None
    assert not document.measured("bandwidth.l2")
    with pytest.raises(RequestError, match="nobody has measured it") as caught:
        document.number("bandwidth.l2")
    assert caught.value.code == "document.unavailable"
    with pytest.raises(RequestError, match="not in the document"):
        document.number("bandwidth.l3")
    assert document.get("bandwidth.l3") is None


FACT = {"value": "3.0", "unit": '"GHz"', "origin": '"vendor"', "source": '"a data sheet"'}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"value": '"3"'}, "no number"),
        ({"value": "true"}, "no number"),
        ({"value": "nan"}, "no number"),
        ({"value": "inf"}, "no number"),
        ({"value": None}, "no number"),
        ({"value": "0"}, "above 0"),
        ({"value": "-1.5"}, "above 0"),
        ({"unit": '"MHz"'}, "unit 'MHz'"),
        ({"unit": "7"}, "unit 7"),
        ({"unit": None}, "unit None"),
        ({"origin": '"guessed"'}, "origin"),
        ({"origin": None}, "origin"),
        ({"source": '""'}, "names no source"),
        ({"source": None}, "names no source"),
        ({"note": '"hello"'}, "unknown key 'note'"),
        ({"unavailable": '"why"'}, "both available and not"),
        ({"value": None, "unavailable": '""'}, "does not say why"),
    ],
)
def test_a_malformed_fact_is_refused_with_its_place(
    change: dict[str, str | None], reason: str
) -> None:
    fields = {k: v for k, v in {**FACT, **change}.items() if v is not None}
    text = "[deep.clock]\n" + "\n".join(f"{name} = {value}" for name, value in fields.items())
    with pytest.raises(RequestError, match=reason) as caught:
        parse(text, "somebody")
    assert caught.value.code == "document.malformed"
    assert "document somebody: deep.clock" in caught.value.message


def test_the_unchanged_fact_is_accepted() -> None:
    text = "[deep.clock]\n" + "\n".join(f"{name} = {value}" for name, value in FACT.items())
    assert parse(text, "somebody").number("deep.clock") == 3.0


def test_text_that_is_no_toml_is_refused_with_the_line() -> None:
    with pytest.raises(RequestError, match="line 1") as caught:
        parse("clock = = 3", "somebody")
    assert caught.value.code == "document.toml"


def test_the_digest_is_over_the_text() -> None:
    same, other = parse(CLOCK, "another name"), parse(CLOCK + "# comment\n", "somebody")
    assert parse(CLOCK, "somebody").digest == same.digest
    assert same.digest != other.digest


def test_a_document_that_cannot_be_read_is_an_internal_error(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="cannot read"):
        load(tmp_path / "missing.toml")
    (tmp_path / "here.toml").write_text(CLOCK, encoding="utf-8")
    assert load(tmp_path / "here.toml").name == "here"


def test_a_rendered_document_is_read_back() -> None:
    facts = {
        "clock": Fact(1.4375, "GHz", Origin.MEASURED, "tfsearch calibrate", 'a "busy" card, 40 °C'),
        "bandwidth.l2": Fact(None, "B/cycle", None, "no sensor"),
        "launch": Fact(2.0, "us", Origin.DERIVED, "counted"),
    }
    text = render(facts, {"device": "a card", "count": 3})
    found = parse(text, "card")
    assert dict(found.facts) == facts
    assert found.settings == {"device": "a card", "count": 3}


def test_a_document_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "card.toml"
    write(path, "a = 1\n")
    write(path, "a = 2\n")
    assert path.read_text() == "a = 2\n"
    assert [p.name for p in path.parent.iterdir()] == ["card.toml"]
    with pytest.raises(NotSavedError, match="cannot write") as caught:
        write(path / "below.toml", "")
    assert caught.value.code == "document.write"
