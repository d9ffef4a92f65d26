"""Parameters, constraints, recipes: what they refuse, and how points are checked."""

import pickle

import numpy as np
import pytest

from tfsearch.core.errors import RequestError
from tfsearch.space import (
    Constraint,
    Definition,
    Kind,
    Parameter,
    Point,
    RecipeSpace,
    Space,
)

MR = Parameter("mr", (1, 2, 4, 6, 8, 14), Kind.ORDINAL)
NV = Parameter("nv", (1, 2, 3, 4), Kind.ORDINAL)
PACK = Parameter("pack", ("none", "a", "both"), Kind.CATEGORICAL)
STREAM = Parameter("stream", (False, True), Kind.BOOLEAN)


def register_tile(**changes):
    fields = {
        "name": "contraction",
        "version": 3,
        "parameters": (MR, NV, PACK, STREAM),
        "definitions": (Definition("regs", "mr*nv + nv + 1"),),
        "constraints": (
            Constraint(
                "x86.registers", "regs <= limit", "needs {regs} registers, {limit} available"
            ),
            Constraint(
                "x86.stream-needs-pack", "not stream or pack != 'none'", "pack is {pack} with {{}}"
            ),
        ),
        "constants": {"limit": 32},
    }
    return RecipeSpace(**{**fields, **changes})


def code_of(call):
    with pytest.raises(RequestError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return caught.value.code


def test_a_kind_owns_its_neighbours():
    assert MR.neighbours(0) == (1,)
    assert MR.neighbours(2) == (1, 3)
    assert MR.neighbours(5) == (4,)
    assert PACK.neighbours(1) == (0, 2)
    assert STREAM.neighbours(0) == (1,)


def test_values_encode_and_decode_with_their_types():
    for parameter in (MR, NV, PACK, STREAM):
        for code, value in enumerate(parameter.values):
            assert parameter.encode(value) == code
            assert parameter.decode(code) is value
            assert parameter.parse(str(value)) is value
    assert STREAM.parse("true") is True
    for parameter, wrong in ((MR, True), (MR, "1"), (MR, 3), (STREAM, 1), (PACK, "None")):
        assert code_of(lambda p=parameter, w=wrong: p.encode(w)) == "space.value-outside-domain"
        assert wrong not in parameter
    assert code_of(lambda: MR.parse("5")) == "space.value-outside-domain"
    assert code_of(lambda: MR.decode(6)) == "space.value-outside-domain"


def test_a_decimal_parameter_is_a_number_to_expressions_and_a_text_to_records():
    share = Parameter("share", ("0.25", "0.5", "1.0"), Kind.DECIMAL)
    fixed = Parameter("fixed", ("0.5",), Kind.DECIMAL)
    recipe = RecipeSpace(
        "r",
        1,
        (share, fixed),
        (Definition("half", "share * fixed"),),
        (Constraint("a.b", "half < 0.5", "{share} gives {half}"),),
    )
    (points,) = Space((recipe,)).legal_set()
    assert [points.params(row)["share"] for row in range(len(points))] == ["0.25", "0.5"]
    assert points.column("share").tolist() == [0.25, 0.5]
    assert points.column("half").tolist() == [0.125, 0.25]
    (refusal,) = recipe.check({"share": "1.0", "fixed": "0.5"})
    assert refusal.message == "1.0 gives 0.5"
    assert share.neighbours(1) == (0, 2)
    assert share.parse("0.25") == "0.25"
    assert share.parse("1") == share.parse("1e0") == "1.0"
    for wrong in ("0.3", "x", "1e999"):
        assert code_of(lambda w=wrong: share.parse(w)) == "space.value-outside-domain"


@pytest.mark.parametrize(
    ("name", "values", "kind", "code"),
    [
        ("a", (), Kind.ORDINAL, "space.empty-domain"),
        ("a", (1, 2, 1), Kind.ORDINAL, "space.duplicate-value"),
        ("a", (1, "x"), Kind.ORDINAL, "space.domain-type"),
        ("a", (0, True), Kind.ORDINAL, "space.domain-type"),
        ("a", (0, 1), Kind.BOOLEAN, "space.domain-type"),
        ("a", (False, True), Kind.ORDINAL, "space.domain-type"),
        ("a", (1.5, 2.5), Kind.ORDINAL, "space.domain-type"),
        ("a", (2**63,), Kind.ORDINAL, "space.domain-type"),
        ("a", (1, 2), Kind.DECIMAL, "space.domain-type"),
        ("a", ("0.5", "x"), Kind.DECIMAL, "space.domain-type"),
        ("a", ("0.5", "nan"), Kind.DECIMAL, "space.domain-type"),
        ("a b", (1,), Kind.ORDINAL, "space.name"),
        ("max", (1,), Kind.ORDINAL, "space.name"),
        ("__a", (1,), Kind.ORDINAL, "space.name"),
        ("not", (1,), Kind.ORDINAL, "space.name"),
    ],
)
def test_bad_parameters_are_refused(name, values, kind, code):
    assert code_of(lambda: Parameter(name, values, kind)) == code


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"definitions": (Definition("mr", "1"),)}, "space.duplicate-name"),
        ({"constants": {"limit": 32, "nv": 1}}, "space.duplicate-name"),
        ({"parameters": (MR, MR, NV, PACK, STREAM)}, "space.duplicate-name"),
        ({"constants": {}}, "space.unknown-name"),
        ({"definitions": (Definition("x", "y"), Definition("y", "1"))}, "space.unknown-name"),
        ({"definitions": (Definition("regs", "mr + pack"),)}, "space.expression-type"),
        ({"constraints": (Constraint("a.b", "pack", ""),)}, "space.expression-type"),
        ({"constraints": (Constraint("a.b", "pack == mr", ""),)}, "space.expression-type"),
        ({"constraints": (Constraint("a.b", "mr * limit > 0", "{size}"),)}, "space.reason"),
        ({"constants": {"limit": 2**62}, "definitions": (Definition("regs", "limit * mr"),)},
         "space.expression-overflow"),
        ({"constants": {"limit": 2**63}}, "space.name"),
    ],
)  # fmt: skip
def test_bad_recipes_are_refused_on_construction(changes, code):
    assert code_of(lambda: register_tile(**changes)) == code


@pytest.mark.parametrize("reason", ["{", "{regs.real}", "{regs[0]}", "{0}", "{}", "{regs:>5}"])
def test_a_reason_shows_plain_names_only(reason):
    bad = (Constraint("a.b", "mr > 0", reason),)
    assert code_of(lambda: register_tile(constraints=bad)) == "space.reason"


@pytest.mark.parametrize("code", ["", "A.b", "a..b", "a b", "a_b"])
def test_a_constraint_code_is_dotted_lower_case(code):
    assert code_of(lambda: Constraint(code, "1", "")) == "space.constraint-code"


def test_the_recipe_at_fault_is_named():
    with pytest.raises(RequestError) as caught:
        register_tile(constraints=(Constraint("x86.lanes", "lanes > 1", ""),))
    for part in ("contraction", "x86.lanes", "'lanes'", "column 1"):
        assert part in caught.value.message


def test_check_gives_every_failing_constraint_with_the_numbers():
    space = Space((register_tile(),))
    good = Point("contraction", {"mr": 6, "nv": 4, "pack": "none", "stream": False})
    assert space.check(good) == ()
    bad = Point("contraction", {"mr": 8, "nv": 4, "pack": "none", "stream": True})
    first, second = space.check(bad)
    assert first.code == "x86.registers"
    assert first.message == "needs 37 registers, 32 available"
    assert "regs <= limit" in first.where
    assert second.code == "x86.stream-needs-pack"
    assert second.message == "pack is none with {}"


def test_check_reports_names_and_values_before_constraints():
    space = Space((register_tile(),))
    wrong = Point("contraction", {"mr": 5, "nv": True, "pack": "none", "lanes": 3})
    found = {(r.code, r.where) for r in space.check(wrong)}
    assert found == {
        ("space.unknown-parameter", "params.lanes"),
        ("space.missing-parameter", "params.stream"),
        ("space.value-outside-domain", "params.mr"),
        ("space.value-outside-domain", "params.nv"),
    }
    message = next(r.message for r in space.check(wrong) if r.where == "params.mr")
    assert "1, 2, 4, 6, 8, 14" in message
    (unknown,) = space.check(Point("rowwise", {}))
    assert unknown.code == "space.unknown-recipe"
    assert "contraction" in unknown.message
    assert code_of(lambda: space.encode(wrong)) == "space.unknown-parameter"
    assert code_of(lambda: space.encode(Point("x", {}))) == "space.unknown-recipe"
    assert code_of(lambda: space.decode("contraction", -1)) == "space.index"
    assert code_of(lambda: space.decode("contraction", space.points)) == "space.index"


def test_an_undefined_definition_fails_the_constraints_that_read_it():
    recipe = RecipeSpace(
        "r",
        1,
        (Parameter("a", (0, 1, 2), Kind.ORDINAL),),
        (Definition("q", "4 // a"),),
        (Constraint("r.q", "q >= 0", "q is {q}"), Constraint("r.or", "a == 0 or q > 1", "")),
    )
    space = Space((recipe,))
    assert space.check(Point("r", {"a": 0}))[0].message == "q is undefined"
    assert space.count().rejected == {"r.q": 1}
    (points,) = space.legal_set()
    assert points.column("q").tolist() == [4, 2]


FLIPS = {
    "name": {"name": "other"},
    "version": {"version": 4},
    "domain": {"parameters": (MR, Parameter("nv", (1, 2, 3), Kind.ORDINAL), PACK, STREAM)},
    "value order": {"parameters": (MR, Parameter("nv", (2, 1, 3, 4), Kind.ORDINAL), PACK, STREAM)},
    "parameter order": {"parameters": (NV, MR, PACK, STREAM)},
    "kind": {"parameters": (MR, Parameter("nv", (1, 2, 3, 4), Kind.CATEGORICAL), PACK, STREAM)},
    "definition": {"definitions": (Definition("regs", "mr*nv + nv + 2"),)},
    "constraint": {"constraints": (Constraint("x86.registers", "regs < limit", ""),)},
    "constraint code": {"constraints": (Constraint("x86.regs", "regs <= limit", ""),)},
    "constant": {"constants": {"limit": 16}},
    "constant type": {"constants": {"limit": True}},
}


@pytest.mark.parametrize("flip", FLIPS, ids=str)
def test_the_fingerprint_flips_with_every_field(flip):
    base, other = Space((register_tile(),)), Space((register_tile(**FLIPS[flip]),))
    assert base.fingerprint != other.fingerprint


def test_the_fingerprint_ignores_reasons_and_spacing():
    base = register_tile()
    worded = tuple(
        Constraint(c.code, c.expression.text.replace(" <= ", "<="), "other words")
        for c in base.constraints
    )
    assert register_tile(constraints=worded).fingerprint == base.fingerprint
    assert Space((base,)).fingerprint == Space((register_tile(),)).fingerprint
    both = Space((base, register_tile(name="second")))
    assert both.fingerprint != Space((base,)).fingerprint
    assert both.fingerprint == ("7a13f403379f9cd95e4bef5200a10194aebbd3a77135aebfd6950d70a2eaeedb")


def test_spaces_survive_pickling_and_still_count():
    space = Space((register_tile(),))
    before = space.count()
    again = pickle.loads(pickle.dumps(space))
    assert again.count() == before
    assert again.fingerprint == space.fingerprint


def test_fix_restricts_domains_and_refuses_values_outside():
    space = Space((register_tile(), register_tile(name="skinny", parameters=(MR, NV, PACK, STREAM,
        Parameter("unroll", (1, 2), Kind.ORDINAL)))))  # fmt: skip
    fixed = space.fix({"mr": 4, "pack": "a"})
    assert fixed.points == 4 * 2 + 4 * 2 * 2
    assert all((p.column("mr") == 4).all() for p in fixed.legal_set())
    assert fixed.fingerprint != space.fingerprint
    assert [r.name for r in space.fix({"unroll": 2}).recipes] == ["contraction", "skinny"]
    assert [r.name for r in space.only("skinny").recipes] == ["skinny"]
    assert code_of(lambda: space.fix({"mr": 5})) == "space.value-outside-domain"
    assert code_of(lambda: space.fix({"mr": True})) == "space.value-outside-domain"
    assert code_of(lambda: space.fix({"lanes": 5})) == "space.unknown-parameter"


def test_fix_drops_a_recipe_whose_domain_lacks_the_value():
    narrow = register_tile(
        name="narrow", parameters=(Parameter("mr", (1, 2), Kind.ORDINAL), NV, PACK, STREAM)
    )
    space = Space((register_tile(), narrow))
    assert [r.name for r in space.fix({"mr": 14}).recipes] == ["contraction"]
    assert [r.name for r in space.fix({"mr": 2}).recipes] == ["contraction", "narrow"]


def test_columns_carry_values_and_definitions():
    (points,) = Space((register_tile(),)).legal_set()
    mr, nv = points.column("mr"), points.column("nv")
    assert mr.dtype == np.int64
    assert (points.column("regs") == mr * nv + nv + 1).all()
    assert points.column("stream").dtype == np.int64
    assert points.codes["pack"].dtype == np.uint8
    assert (points.column("pack") == points.codes["pack"]).all()
    assert set(points.labels("pack").tolist()) == {"none", "a", "both"}
    assert (points.column("limit") == 32).all()
    chosen = points.select(mr == 6)
    assert len(chosen) == int((mr == 6).sum())
    assert (chosen.column("mr") == 6).all()
    backwards = points.select([2, 0])
    assert backwards.index.tolist() == [points.index[2], points.index[0]]
    assert code_of(lambda: points.column("lanes")) == "space.unknown-name"
