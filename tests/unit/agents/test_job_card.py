"""A job card as a message: one form, whatever parts the card has."""

from hypothesis import assume, given
from hypothesis import strategies as st

from spass.runs.chat_body import MAX_ACCEPTANCE_LINES, MAX_FILES, JobCard


def test_parts_that_a_card_lacks_are_left_out() -> None:
    assert JobCard(title="Plan", task="Write a plan.").render() == "# Job card: Plan\n\n## Task\n\nWrite a plan."


def test_a_title_is_one_line_and_a_task_keeps_its_lines() -> None:
    text = JobCard(title=" Plan\n# and do ", task="\n1. Plan.\n\n2. Do.\n").render()
    assert text == "# Job card: Plan # and do\n\n## Task\n\n1. Plan.\n\n2. Do."


def test_acceptance_is_a_text_or_a_list_with_the_same_lines() -> None:
    text = JobCard.model_validate({"title": "t", "task": "t", "acceptance": "It works.\n\n  It is tested.\n"})
    listed = JobCard.model_validate({"title": "t", "task": "t", "acceptance": ["It works.", "It is tested."]})
    assert text.render() == listed.render()
    assert text.render().endswith("## Acceptance\n\n- It works.\n- It is tested.")


def test_the_largest_card_is_accepted() -> None:
    card = JobCard(
        title="t" * 200,
        task="t",
        files=tuple(f"f{number}" for number in range(MAX_FILES)),
        acceptance=("line",) * MAX_ACCEPTANCE_LINES,
    )
    assert card.render().count("\n- ") == MAX_FILES + MAX_ACCEPTANCE_LINES


@given(title=st.text(" ab\n#", min_size=1, max_size=200), task=st.text("ab \n#-", min_size=1))
def test_the_same_card_always_has_the_same_message(title: str, task: str) -> None:
    assume(title.strip() and task.strip())
    first, again = (JobCard(title=title, task=task).render() for _ in range(2))
    assert first == again
    heading, _, rest = first.partition("\n\n")
    assert heading.removeprefix("# Job card: ").split() == title.split()
    assert rest == f"## Task\n\n{task.strip()}"
