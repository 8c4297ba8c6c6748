"""The list of differences is complete, and each entry names a proof that there is."""

from pathlib import Path

import pytest

from infra.rehearsal.corrections import CORRECTIONS
from infra.rehearsal.differences import DIFFERENCES, Difference
from infra.rehearsal.steps import STEPS

ROOT = Path(__file__).resolve().parents[4]


def test_each_correction_is_on_the_list() -> None:
    assert {one.correction for one in DIFFERENCES} - {None} == {correct.__name__ for correct in CORRECTIONS}


def test_each_difference_has_a_name_of_its_own() -> None:
    assert len({one.name for one in DIFFERENCES}) == len(DIFFERENCES)


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda one: one.name)
def test_the_proof_of_a_difference_exists(difference: Difference) -> None:
    path, _, test = difference.proof.partition("::")
    if test:
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8")
    else:
        assert path in {step.name for step in STEPS}
    assert difference.held_by == "a live account alone" or (ROOT / difference.held_by).is_file()
