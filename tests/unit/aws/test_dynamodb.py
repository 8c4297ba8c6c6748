"""Test the parameters of the requests to DynamoDB."""

from spass.aws.dynamodb import parameters_of
from spass.store.keys import Key
from spass.store.writes import ITEM_ABSENT, Absent, AtMost, Check, Equals, Put, Update

KEY = Key("T#demo#A", "B")
STORED_KEY = {"pk": {"S": KEY.pk}, "sk": {"S": KEY.sk}}


def test_names_and_values_become_placeholders() -> None:
    write = Update(KEY, set={"status": "done", "hold.owner": "me"}, remove=("name",), when=Equals("status", "running"))
    assert parameters_of(write) == {
        "Key": STORED_KEY,
        "UpdateExpression": "SET #n0 = :v0, #n1.#n2 = :v1 REMOVE #n3",
        "ConditionExpression": "#n0 = :v2",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        "ExpressionAttributeNames": {"#n0": "status", "#n1": "hold", "#n2": "owner", "#n3": "name"},
        "ExpressionAttributeValues": {":v0": {"S": "done"}, ":v1": {"S": "me"}, ":v2": {"S": "running"}},
    }


def test_conditions_nest() -> None:
    free = Equals("user", "ana") & (Absent("hold") | AtMost("hold.expires_at", 7))
    rendered = parameters_of(Check(KEY, free))["ConditionExpression"]
    assert rendered == "(#n0 = :v0 AND (attribute_not_exists(#n1) OR #n1.#n2 <= :v1))"


def test_adding_to_an_entry_of_a_map_becomes_a_sum() -> None:
    write = Update(KEY, add={"count": 1, "window.7": 2}, discard={"members": frozenset({"a"})}, default={"since": 3})
    assert parameters_of(write)["UpdateExpression"] == (
        "SET #n0 = if_not_exists(#n0, :v0), #n2.#n3 = #n2.#n3 + :v2 ADD #n1 :v1 DELETE #n4 :v3"
    )


def test_a_write_without_a_condition_has_no_condition_parameters() -> None:
    assert parameters_of(Put(KEY, {"n": 1})) == {"Item": {"n": {"N": "1"}} | STORED_KEY}
    assert parameters_of(Put(KEY, {}, ITEM_ABSENT))["ConditionExpression"] == "attribute_not_exists(#n0)"
