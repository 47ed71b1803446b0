"""`service`: the contracts, the scripted user, policies, a user that is an actor, tau2's files."""

import asyncio
import gzip
import json

import msgspec
import pytest
from envgym_environments.tool.service.airline import Airline
from envgym_environments.tool.service.desk import Act, Case, Refused
from envgym_environments.tool.service.tau2 import tau2_case
from envgym_environments.tool.service.user import GOODBYE, agrees, answer_of
from envgym_environments.tool.service.world import SPEC, expert, service_tasks

from envgym import play
from envgym.env import EARNED_BY, Step, StopReason
from envgym.limits import Limits
from envgym.messages import Action, Message, ParseError, ToolCall
from envgym.registry import make, register, unregister
from envgym.rollout import Origin, Rollout
from envgym.task import Task
from envgym.testing import check_env_sync, check_task_sync, check_tasks
from envgym.testing.fakes import ScriptedAgent

SERVICES = pytest.mark.parametrize("service", ["retail", "office", "files"])
LONG = Limits(turns=60)


@SERVICES
def test_it_meets_the_environment_contract(service) -> None:
    check_env_sync(lambda: make(SPEC, service_tasks(service=service)[1]), uses_seed=True)


def test_half_a_surrogate_in_a_call_is_answered_and_the_episode_can_still_be_kept() -> None:
    async def main() -> str:
        env = make(SPEC, service_tasks(service="office")[0])
        await env.reset(seed=0)
        step = await env.step(Action.call("create_event", title="Lunch \ud83d", day="monday", start=9, end=10))
        assert (await env.snapshot()).state
        odd = ParseError(message="not a call: \ud83d", text="\ud83d")
        await env.step(Action(message=Message(role="assistant", content="\ud83d"), error=odd))
        assert (await env.snapshot()).state
        return step.text

    assert "half a surrogate pair" in asyncio.run(main())


@SERVICES
def test_cases_of_all_difficulties_are_solved_by_the_expert_and_not_by_doing_nothing(service) -> None:
    tasks = service_tasks(30, service=service)
    check_task_sync(tasks, lambda t: make(SPEC, t), expert, seeds=(0,), limits=LONG, seeded=True)


@pytest.mark.parametrize(
    ("said", "yes"),
    [
        ("Yes, please.", True), ("OK", True), ("Sure, go ahead", True), ("That is correct.", True),
        ("No, please don't.", False), ("That is incorrect.", False), ("I'm not sure", False), ("Measure it", False),
        ("yes, but wait", False), ("Please do not", False), ("", False),
    ],
)  # fmt: skip
def test_a_refusal_of_a_user_who_speaks_freely_is_no_yes(said: str, yes: bool) -> None:
    assert agrees(said) is yes


def test_a_proposal_with_the_label_done_is_no_end_and_a_report_is() -> None:
    label = Action.call("label_mail", mail_id=3, label="done").calls
    case = Case(
        "There is a mail 'Rent': label it, please.", "me", {"label|how|which|what": "As done."}, gold=[*label]
    )
    for said in ("Once its label is done, shall I proceed?", "I label it so that it is done. Is that right?"):
        assert answer_of(case, 0, said) == ("Yes, please.", 0, True), said
    for said in ("It is done.", "All is confirmed and done. Is there anything else?", "You are all set."):
        assert answer_of(case, 0, said)[0] == GOODBYE, said


def test_tasks_are_data_that_is_drawn_without_end() -> None:
    tasks = service_tasks(150)
    check_tasks(tasks, splits=("train", "heldout"), seeded=True)
    assert {task.metadata["difficulty"] for task in tasks.split("heldout")} == {1, 2, 3, 4, 5}
    assert len({task.prompt for task in tasks}) > 120
    assert service_tasks(None)[10**6].prompt
    for wrong in ({"service": "bank"}, {"difficulty": 0}, {"count": 0}):
        with pytest.raises(ValueError, match="must be"):
            service_tasks(**wrong)  # type: ignore[arg-type]


async def _played(actions, task, **options) -> Step:
    env = make(SPEC, task, **options)
    step = await env.reset(seed=0)
    for action in actions:
        if step.stop is None:
            step = await env.step(Action.say(action) if isinstance(action, str) else action)
    await env.close()
    return step


def _expert_actions(task):
    async def run():
        env, agent, actions = make(SPEC, task), expert(task, seed=0), []
        step = await env.reset(seed=0)
        while step.stop is None:
            actions.append((await agent.act(step)).action)
            step = await env.step(actions[-1])
        return actions

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("leaves_out", "channel"),
    [("find_user_id_by_email", "kept"), ("Shall I proceed?", "kept"), ("cancel_", "state")],
)
def test_a_right_end_is_not_enough_where_the_policy_was_broken(leaves_out, channel) -> None:
    tasks = service_tasks(service="retail", difficulty=1)
    task = next(task for task in tasks if "cancel" in task.prompt)
    kept = [one for one in _expert_actions(task) if leaves_out not in f"{one.text} {[c.name for c in one.calls]}"]
    end = asyncio.run(_played(kept, task))
    assert end.stop is StopReason.SUBMITTED
    assert (end.reward, end.channels[channel]) == (0.0, 0.0)


def test_a_request_against_the_policy_must_be_refused_in_words() -> None:
    task = next(task for task in service_tasks(service="retail", difficulty=5) if "urgent" in task.prompt)
    silent = asyncio.run(_played(["It is all done."], task))
    assert (silent.reward, silent.channels["told"], silent.channels["state"]) == (0.0, 0.0, 1.0)
    assert asyncio.run(_played(["I am unable to do that. Is there anything else?"], task)).reward == 1.0


def test_a_refused_change_leaves_nothing_half_done() -> None:
    task = next(task for task in service_tasks(service="retail", difficulty=1) if "cancel" in task.prompt)
    order = next(word for word in task.prompt.replace("?", " ").replace(".", " ").split() if word.startswith("#"))

    async def run() -> None:
        env = make(SPEC, task)
        await env.reset(seed=0)
        before = msgspec.json.decode((await env.snapshot()).state)["state"]["db"]
        refused = await env.step(Action.call("modify_pending_order_payment", order_id=order, payment_method_id="x"))
        assert refused.text.startswith("refused: ")
        assert msgspec.json.decode((await env.snapshot()).state)["state"]["db"] == before

    asyncio.run(run())


def test_a_state_key_differs_where_the_future_may() -> None:
    task = next(task for task in service_tasks(service="retail", difficulty=5) if "urgent" in task.prompt)
    user = next(call for call in _expert_actions(task) if "find_user" in f"{[c.name for c in call.calls]}")

    def key(*actions, **options) -> str:
        return asyncio.run(_played(actions, task, **options)).state_key

    assert key() != key(user), "who is known decides what may be done"
    assert key("Well.") != key("I am unable to do that."), "what had to be told was told"
    assert key("Well.") != key("Well.", "Well."), "after sixty sentences the user leaves"
    assert key("One.") == key("Two."), "but which words told nothing is nothing that is kept"
    assert key("One?", user="actor") != key("Two?", user="actor"), "whoever plays the user may keep every word"
    task = service_tasks(service="files", difficulty=1)[0]
    _, _, name, _, folder = task.prompt.split(" ")
    path = f"{folder.rstrip('.')}/{name}"
    lines = [Action.call("append_line", path=path, line=line) for line in ("a", "b", "x" * 500)]
    assert key(lines[0], lines[2]) != key(lines[1], lines[2]), "what was done long ago is not forgotten"


def _person(tmp_path, **says) -> Case:
    """The case of a task of tau2's retail: an order to cancel, by a person who was told what `says` says."""
    told = {
        "domain": "retail",
        "reason_for_call": "You want to cancel order #W123 and to know the price of a lamp.",
        "known_info": "You are Yusuf Rossi in zip code 19122. You have a red cat.",
        "unknown_info": "You do not remember your email address.",
        "task_instructions": "If the agent asks how many people live with you, say that there are 3.",
    }
    actions = [("cancel_pending_order", {"order_id": "#W123", "reason": "no longer needed"})]
    (tmp_path / "db.json").write_text(json.dumps({"users": {}, "orders": {}, "products": {}}))
    (tmp_path / "tasks.json").write_text(json.dumps([_entry("0", actions, instructions=told | says)]))
    return tau2_case(service_tasks(path=str(tmp_path))[0])[1]


def test_tau2s_scripted_user_says_what_is_asked_and_no_more(tmp_path) -> None:
    case = _person(tmp_path)
    for asked, said in (
        ("What is your name?", "My name is Yusuf Rossi."),
        ("Could you give me your ZIP code, please?", "My zip code is 19122."),
        ("Can you confirm your name and zip code?", "My zip code is 19122. My name is Yusuf Rossi."),
        ("And your email?", "You do not remember your email address."),
        ("How many people are there?", "There are 3."),
        ("Which order is it?", "You want to cancel order #W123 and to know the price of a lamp."),
        ("What colour is the cat?", "You have a red cat."),
        ("What is your favourite opera?", "I do not know. I told you what I want."),
        ("I see.", "Please go on."),
    ):
        assert answer_of(case, 0, asked) == (said, 0, False), asked


def test_tau2s_scripted_user_says_yes_to_what_they_want_alone(tmp_path) -> None:
    case = _person(tmp_path)
    for proposal in (
        "I will cancel order #W123, as no longer needed. Shall I proceed?",
        "Order W123 would be cancelled, and $64.20 refunded within 2 days. Do you confirm (yes/no)?",
        "cancel_pending_order #W123 'no longer needed': shall I?",
    ):
        assert answer_of(case, 0, proposal) == ("Yes, please.", 0, True), proposal
    for proposal, why in (
        ("Shall I proceed?", "What exactly"),
        ("I will cancel something. Is that ok?", "You want to cancel order"),
        ("Shall I look after #W123?", "You want to cancel order"),
        ("I will cancel order #W999. Do you confirm?", "anything with w999"),
        ("I will cancel order #W123 and #W124. Do you confirm?", "anything with w124"),
        ("I will exchange item 1234567890 of order #W123, ok? Shall I?", "anything with 1234567890"),
    ):
        said, _, yes = answer_of(case, 0, proposal)
        assert (why in said, yes) == (True, False), proposal


@pytest.mark.parametrize("service", ["retail", "office", "files"])
def test_users_of_drawn_cases_say_no_yes_to_what_was_not_said_either(service) -> None:
    for task in service_tasks(6, service=service, difficulty=1):
        said = asyncio.run(_played(["Shall I proceed?"], task)).text
        assert said.startswith("What exactly"), said


def test_an_actor_may_play_the_user() -> None:
    task = next(task for task in service_tasks(service="files", difficulty=1))
    env = make(SPEC, task, user="actor")
    _, _, name, _, folder = task.prompt.split(" ")
    path = f"{folder.rstrip('.')}/{name}"
    agent = ScriptedAgent(
        ["Shall I move it to /trash?", Action.call("move_file", path=path, to=f"/trash/{name}"), "It is done."]
    )
    user = ScriptedAgent(["move_file a b is what I mean: yes", "Goodbye"], name="user")
    episode = asyncio.run(play(env, {"agent": agent, "user": user}, origin=Origin("one", 0), rollout=Rollout()))
    assert [turn.actor for turn in episode.turns] == ["agent", "user", "agent", "agent", "user"]
    assert "You are the user" in episode.turns[0].step.text
    assert episode.turns[-1].step.info == {EARNED_BY: "agent"}, "the user has the last word, and nothing earned"
    assert episode.reward == 1.0


def test_tau2s_retail_tasks_are_played_as_they_lie(tmp_path) -> None:
    drawn = next(task for task in service_tasks(service="retail", difficulty=3))

    async def database():
        env = make(SPEC, drawn)
        await env.reset(seed=0)
        return msgspec.json.decode((await env.snapshot()).state)["state"]["db"]

    db = asyncio.run(database())
    user = next(
        user for user in db["users"].values() for o in user["orders"] if db["orders"][o]["status"] == "pending"
    )
    order = next(key for key in user["orders"] if db["orders"][key]["status"] == "pending")
    actions = [
        {"action_id": "0_0", "name": "find_user_id_by_email", "arguments": {"email": user["email"]}, "info": None},
        {
            "action_id": "0_1",
            "name": "cancel_pending_order",
            "arguments": {"order_id": order, "reason": "no longer needed"},
            "info": None,
        },
    ]
    says = {
        "domain": "retail",
        "reason_for_call": "You want to cancel your order.",
        "known_info": "Your email is x.",
        "unknown_info": None,
        "task_instructions": "You are terse.",
    }
    entry = {
        "id": "0",
        "user_scenario": {"persona": None, "instructions": says},
        "evaluation_criteria": {"actions": actions, "communicate_info": ["12.5"], "nl_assertions": None},
    }
    (tmp_path / "db.json").write_text(json.dumps(db))
    (tmp_path / "tasks.json").write_text(json.dumps([entry]))
    (tmp_path / "split_tasks.json").write_text(json.dumps({"train": [], "test": ["0"]}))
    tasks = service_tasks(path=str(tmp_path))
    assert [task.split for task in tasks] == ["heldout"]
    check_task_sync(tasks, lambda task: make(SPEC, task), expert, seeds=(0,))
    check_env_sync(lambda: make(SPEC, tasks[0]), uses_seed=True)
    (tmp_path / "db.json").write_text("{}")
    with pytest.raises(ValueError, match="only retail, airline, mock are played"):
        service_tasks(path=str(tmp_path))


def _flight(number: str, origin: str, to: str, lands: str = "09:00:00", status: str = "available") -> dict:
    leaves = "08:00:00" if lands == "09:00:00" else "10:00:00"
    cabins = ("basic_economy", "economy", "business")
    day = {"status": status}
    if status == "available":
        day |= {
            "available_seats": dict.fromkeys(cabins, 2),
            "prices": dict(zip(cabins, (60, 100, 300), strict=True)),
        }
    times = {"scheduled_departure_time_est": leaves, "scheduled_arrival_time_est": lands}
    return {"origin": origin, "destination": to, "flight_number": number, **times, "dates": {"2024-05-20": day}}


def _airline() -> dict:
    methods = {
        "credit_card_1": {"source": "credit_card", "id": "credit_card_1", "brand": "visa", "last_four": "1111"},
        "gift_card_1": {"source": "gift_card", "id": "gift_card_1", "amount": 150.0},
        "certificate_1": {"source": "certificate", "id": "certificate_1", "amount": 100.0},
    }
    user = {"user_id": "ann_1", "email": "a@b.c", "payment_methods": methods, "reservations": ["AAAAAA"]}
    leg = {"origin": "AAA", "destination": "BBB", "flight_number": "F1", "date": "2024-05-20", "price": 90}
    people = [{"first_name": "Ann", "last_name": "A", "dob": "1990-01-01"}]
    trip = {"reservation_id": "AAAAAA", "user_id": "ann_1", "origin": "AAA", "destination": "BBB"}
    trip |= {"flight_type": "one_way", "cabin": "economy", "flights": [leg], "passengers": people}
    trip |= {
        "payment_history": [{"payment_id": "credit_card_1", "amount": 90}],
        "created_at": "2024-05-15T10:00:00",
    }
    trip |= {"total_baggages": 0, "nonfree_baggages": 0, "insurance": "no"}
    flights = [_flight("F1", "AAA", "BBB"), _flight("F2", "AAA", "CCC"), _flight("F3", "CCC", "BBB", "11:00:00")]
    flights.append(_flight("F4", "AAA", "BBB", status="delayed"))
    return {
        "flights": {flight["flight_number"]: flight for flight in flights},
        "users": {"ann_1": user},
        "reservations": {"AAAAAA": trip},
    }


def _entry(number: str, actions, *, tell=(), instructions=None, **more) -> dict:
    says = {"reason_for_call": f"Do number {number}.", "known_info": "Your user id is ann_1.", "domain": "x"}
    listed = [{"action_id": f"{number}_{k}", "name": n, "arguments": a} for k, (n, a) in enumerate(actions)]
    criteria = {"actions": listed, "communicate_info": list(tell), "nl_assertions": None} | more.pop("criteria", {})
    return {
        "id": number,
        "user_scenario": {"persona": None, "instructions": instructions or says},
        "evaluation_criteria": criteria,
        **more,
    }


_BOOKING = {
    "user_id": "ann_1", "origin": "AAA", "destination": "BBB", "flight_type": "one_way", "cabin": "economy",
    "flights": [{"flight_number": "F2", "date": "2024-05-20"}, {"flight_number": "F3", "date": "2024-05-20"}],
    "passengers": [{"first_name": "Ann", "last_name": "A", "dob": "1990-01-01"}],
    "total_baggages": 1,
    "payment_methods": [
        {"payment_id": "certificate_1", "amount": 100}, {"payment_id": "gift_card_1", "amount": 150},
    ],
    "nonfree_baggages": 1, "insurance": "no",
}  # fmt: skip
_MOVED = {
    "reservation_id": "AAAAAA",
    "cabin": "business",
    "flights": _BOOKING["flights"],
    "payment_id": "credit_card_1",
}


def test_tau2s_airline_tasks_are_played_as_they_lie(tmp_path) -> None:
    look = ("get_user_details", {"user_id": "ann_1"})
    bags = {"reservation_id": "AAAAAA", "total_baggages": 1, "nonfree_baggages": 1, "payment_id": "gift_card_1"}
    others = {
        "reservation_id": "AAAAAA",
        "passengers": [{"first_name": "Bo", "last_name": "B", "dob": "1991-01-01"}],
    }
    entries = [
        _entry("0", [look, ("book_reservation", _BOOKING)]),
        _entry("1", [("cancel_reservation", {"reservation_id": "AAAAAA"})], tell=["90"]),
        _entry("2", [("update_reservation_flights", _MOVED), ("update_reservation_baggages", bags)]),
        _entry(
            "3",
            [("update_reservation_passengers", others), ("send_certificate", {"user_id": "ann_1", "amount": 50})],
        ),
    ]
    with gzip.open(tmp_path / "db.json.gz", "wt") as file:
        json.dump(_airline(), file)
    (tmp_path / "tasks.json").write_text(json.dumps(entries))
    (tmp_path / "policy.md").write_text("Be kind to passengers.")
    tasks = service_tasks(path=str(tmp_path))
    assert [task.id for task in tasks] == [f"tau2/airline/{number}" for number in range(4)]
    check_task_sync(tasks, lambda task: make(SPEC, task), expert, seeds=(0,))
    check_env_sync(lambda: make(SPEC, tasks[0]), uses_seed=True)
    first = asyncio.run(_played([], tasks[0]))
    assert first.text.startswith("Be kind to passengers.")


def test_the_airlines_tools_do_what_can_be_done_and_say_why_not() -> None:
    desk = Airline(_airline())
    booked = json.loads(desk.book_reservation(**_BOOKING))
    assert [leg["price"] for leg in booked["flights"]] == [100, 100]
    methods = desk.db["users"]["ann_1"]["payment_methods"]
    assert (methods["gift_card_1"]["amount"], "certificate_1" in methods) == (0.0, False)
    assert desk.db["flights"]["F2"]["dates"]["2024-05-20"]["available_seats"]["economy"] == 1
    assert json.loads(desk.search_onestop_flight("AAA", "BBB", "2024-05-20"))[0][1]["flight_number"] == "F3"
    assert [f["flight_number"] for f in json.loads(desk.search_direct_flight("AAA", "BBB", "2024-05-20"))] == ["F1"]
    moved = json.loads(desk.update_reservation_flights(**_MOVED))
    assert (moved["cabin"], moved["payment_history"][-1]["amount"]) == ("business", 2 * 300 - 90)
    assert desk.calculate("2 * ((350 - 122) + (499 - 127))") == "1200.0"
    paid = [{"payment_id": "credit_card_1", "amount": 1}]
    twice = [{"payment_id": "gift_card_1", "amount": 0}] * 2
    delayed, below = [{"flight_number": "F4", "date": "2024-05-20"}], [{"payment_id": "x", "amount": -1}]
    for name, given, why in (
        ("book_reservation", {**_BOOKING, "payment_methods": paid}, "the price is 250"),
        ("book_reservation", {**_BOOKING, "payment_methods": twice}, "named once"),
        ("book_reservation", {**_BOOKING, "payment_methods": below}, "at least 0"),
        ("book_reservation", {**_BOOKING, "flights": [{"flight_number": "F4"}]}, "date is missing"),
        ("update_reservation_flights", {**_MOVED, "flights": delayed}, "not available"),
        ("update_reservation_passengers", {"reservation_id": "AAAAAA", "passengers": []}, "does not change"),
        ("get_user_details", {"user_id": "bo_2"}, "user not found"),
        ("calculate", {"expression": "__import__('os')"}, "numbers with"),
        ("calculate", {"expression": "9**9**9"}, "numbers with"),
        ("calculate", {"expression": "1/0"}, "numbers with"),
    ):
        with pytest.raises(Refused, match=why):
            getattr(desk, name)(**given)


_BOOKED = {"flights": ["F2"], "passengers": [["Ann"]], "payment_methods": [1], "cabin": "first", "flight_type": "x"}


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *(("book_reservation", {**_BOOKING, argument: wrong}) for argument, wrong in _BOOKED.items()),
        ("update_reservation_flights", {**_MOVED, "flights": ["F2"]}),
        ("update_reservation_flights", {**_MOVED, "cabin": "first"}),
        ("update_reservation_passengers", {"reservation_id": "AAAAAA", "passengers": [None]}),
    ],
)
def test_arguments_of_another_type_inside_are_refused_and_change_nothing(tmp_path, name, given) -> None:
    (tmp_path / "db.json").write_text(json.dumps(_airline()))
    (tmp_path / "tasks.json").write_text(
        json.dumps([_entry("0", [("cancel_reservation", {"reservation_id": "AAAAAA"})])])
    )
    (task,) = service_tasks(path=str(tmp_path))
    step = asyncio.run(_played([Action.call(name, **given)], task))
    assert step.text.startswith("refused: "), step.text
    assert "Input should be" in step.text
    right = asyncio.run(_played([Action.call("book_reservation", **_BOOKING)], task))
    assert json.loads(right.text)["reservation_id"] == "HATHAT"


def test_new_items_that_are_numbers_are_refused() -> None:
    async def run() -> None:
        for task in service_tasks(service="retail", difficulty=3):
            env = make(SPEC, task)
            await env.reset(seed=0)
            db = msgspec.json.decode((await env.snapshot()).state)["state"]["db"]
            several = (one for one in db["orders"].values() if len(one["items"]) > 1)
            order = next((one for one in several if one["status"] == "delivered"), None)
            if order is None:
                continue
            items, new = [item["item_id"] for item in order["items"]][:2], []
            for item in order["items"][:2]:
                variants = db["products"][item["product_id"]]["variants"]
                new.append(next((one for one, kind in variants.items() if kind["available"]), ""))
            if not all(one.isdecimal() for one in new):
                continue
            method = next(iter(db["users"][order["user_id"]]["payment_methods"]))
            asked = {"order_id": order["order_id"], "item_ids": items, "payment_method_id": method}
            for wrong in ([int(new[0]), new[1]], [*map(int, new)]):
                step = await env.step(Action.call("exchange_delivered_order_items", new_item_ids=wrong, **asked))
                assert step.text == "refused: new_item_ids.0: Input should be a valid string"
            assert msgspec.json.decode((await env.snapshot()).state)["state"]["db"] == db
            step = await env.step(Action.call("exchange_delivered_order_items", new_item_ids=new, **asked))
            assert json.loads(step.text)["exchange_new_items"] == sorted(new)
            return
        raise AssertionError("no task has such an order")

    asyncio.run(run())


def test_tau2s_mock_tasks_begin_where_they_say_and_hold_what_is_asserted(tmp_path) -> None:
    db = {
        "tasks": {"task_1": {"task_id": "task_1", "title": "T", "description": None, "status": "pending"}},
        "users": {"user_1": {"user_id": "user_1", "name": "U", "tasks": ["task_1"]}},
    }
    made = {"user_id": "user_1", "title": "Review"}
    done = [("update_task_status", {"task_id": "task_2", "status": "completed"})]
    holds = {"func_name": "assert_task_status", "arguments": {"task_id": "task_2", "expected_status": "completed"}}
    begun = {"initialization_actions": [{"env_type": "assistant", "func_name": "create_task", "arguments": made}]}
    told = [
        {"role": "user", "content": "I need a task."},
        {"role": "assistant", "tool_calls": [{"id": "c", "name": "create_task", "arguments": made}]},
        {"role": "tool", "id": "c", "content": "task_2"},
    ]
    data = {"tasks": {"task_2": {"task_id": "task_2", "title": "R", "description": None, "status": "pending"}}}
    entries = [
        _entry("new", [("create_task", made)], instructions="Make a task."),
        _entry("begun", done, initial_state=begun),
        _entry("told", done, initial_state={"message_history": told}, criteria={"env_assertions": [holds]}),
        _entry("data", done, initial_state={"initialization_data": {"agent_data": data}}),
    ]
    entries[2]["evaluation_criteria"]["reward_basis"] = ["ENV_ASSERTION"]
    (tmp_path / "db.json").write_text(json.dumps(db))
    (tmp_path / "tasks.json").write_text(json.dumps(entries))
    tasks = service_tasks(path=str(tmp_path))
    check_task_sync(tasks, lambda task: make(SPEC, task), expert, seeds=(0,))
    assert tasks[2].prompt.startswith("user: I need a task.\ntool: task_2\nDo number told.")
    idle = asyncio.run(_played(["It is done."], tasks[2]))
    assert (idle.reward, idle.channels["state"]) == (0.0, 0.0)
    holds["func_name"] = "assert_the_moon"
    (tmp_path / "tasks.json").write_text(json.dumps(entries))
    with pytest.raises(ValueError, match="entry 2: no task of tau2"):
        service_tasks(path=str(tmp_path))


_MOCK = {
    "tasks": {"task_1": {"task_id": "task_1", "title": "T", "description": None, "status": "pending"}},
    "users": {"user_1": {"user_id": "user_1", "name": "U", "tasks": ["task_1"]}},
}
_UPDATE = {"task_id": "task_1", "status": "completed"}


def _mock(tmp_path, basis, actions=(("update_task_status", _UPDATE),), **criteria):
    """The one task of a folder of tau2's mock domain whose basis is this."""
    entry = _entry("0", actions, instructions="Finish it.", criteria=criteria | {"reward_basis": basis})
    (tmp_path / "db.json").write_text(json.dumps(_MOCK))
    (tmp_path / "tasks.json").write_text(json.dumps([entry]))
    return service_tasks(path=str(tmp_path), judged=True)[0]


def test_tasks_of_tau2_that_need_a_judge_are_left_out_and_counted_unless_they_are_asked_for(tmp_path) -> None:
    bases = (None, ["DB"], ["DB", "NL_ASSERTION"], [], ["NL_ASSERTION"], ["ENV_ASSERTION", "ACTION"])
    (tmp_path / "db.json").write_text(json.dumps(_MOCK))

    def written(*bases, says=("The agent is polite.",)) -> list[Task]:
        said = {"nl_assertions": says and list(says)}
        criteria = [said | ({"reward_basis": one} if one else {}) for one in bases]
        entries = [_entry(str(number), (), criteria=one) for number, one in enumerate(criteria)]
        (tmp_path / "tasks.json").write_text(json.dumps(entries))
        return list(service_tasks(path=str(tmp_path)))

    with pytest.warns(UserWarning, match=r"2 of 6 tasks have NL_ASSERTION .* left out; judged=True takes them"):
        found = written(*bases)
    assert [task.id for task in found] == [f"tau2/mock/{number}" for number in (0, 1, 3, 5)]
    own = ["DB", "COMMUNICATE"]
    assert [task.metadata["reward_basis"] for task in found] == [own, ["DB"], own, ["ENV_ASSERTION", "ACTION"]]
    assert len(service_tasks(path=str(tmp_path), judged=True)) == 6
    for says in (None, ()):  # nothing to judge: many of tau2's retail tasks name the basis and hold no assertion
        kept = written(["DB", "NL_ASSERTION"], says=says)
        assert [task.metadata["judged"] for task in kept] == [[]]
    with pytest.raises(ValueError, match="1 of 1 tasks have NL_ASSERTION"):
        written(["NL_ASSERTION"], says=None)  # nothing at all is graded
    with pytest.raises(ValueError, match="1 of 1 tasks have NL_ASSERTION"):
        written(["NL_ASSERTION"])
    with pytest.raises(ValueError, match="judged is for the tasks of a folder"):
        service_tasks(3, judged=True)


@pytest.mark.parametrize(
    ("basis", "rewards"),
    [
        # done with a yes and told, done without a yes, told without doing it, nothing
        (None, (1.0, 0.0, 0.0, 0.0)),
        (["DB", "COMMUNICATE"], (1.0, 0.0, 0.0, 0.0)),
        (["DB"], (1.0, 1.0, 0.0, 0.0)),
        (["COMMUNICATE"], (1.0, 0.0, 1.0, 0.0)),
        (["ACTION"], (1.0, 1.0, 0.0, 0.0)),
        (["NL_ASSERTION"], (None, None, None, None)),
        (["DB", "NL_ASSERTION"], (1.0, 1.0, 0.0, 0.0)),
    ],
)
def test_of_tau2s_tasks_their_basis_counts_and_what_nobody_graded_is_said(tmp_path, basis, rewards) -> None:
    task = _mock(tmp_path, basis, communicate_info=["42"], nl_assertions=["The agent is polite."])
    assert task.metadata["nl_assertions"] == ["The agent is polite."]
    assert task.metadata["reward_basis"] == (basis or ["DB", "COMMUNICATE"])
    judged = basis is not None and "NL_ASSERTION" in basis
    assert task.metadata["judged"] == (["The agent is polite."] if judged else [])
    change = Action.call("update_task_status", **_UPDATE)
    end, ask = (
        "It is done. Is there anything else?",
        "I will update_task_status task_1 to completed. Shall I proceed?",
    )
    for actions, reward in zip(
        ([ask, change, f"42. {end}"], [change, end], [f"42. {end}"], [end]), rewards, strict=True
    ):
        last = asyncio.run(_played(actions, task))
        assert (last.reward, last.channels.get("reward")) == (reward, reward), actions
        assert last.info.get("silent") == (["judged"] if judged else None)
        assert "judged" not in last.channels
        assert ("acted" in last.channels) == (basis == ["ACTION"])


def test_an_action_of_tau2s_is_matched_by_the_arguments_that_it_compares(tmp_path) -> None:
    made = {"user_id": "user_1", "title": "Review", "description": "long"}
    task = _mock(tmp_path, ["ACTION"], [("get_users", {}), ("create_task", made)])
    call, other = Action.call("create_task", **made), Action.call("create_task", **(made | {"title": "Other"}))
    keys = []
    for actions, acted in (([Action.call("get_users"), call], 1.0), ([call], 0.5), ([other], 0.0)):
        keys.append(asyncio.run(_played(actions, task)).state_key)
        last = asyncio.run(_played([*actions, "It is done. Is there anything else?"], task))
        assert (last.channels["acted"], last.reward) == (acted, float(acted == 1.0))
    assert len(set(keys)) == 3
    partly = Act("create_task", made, ["user_id"])
    assert partly.is_done_by(other.calls[0])
    assert not partly.is_done_by(Action.call("create_task", title="Review").calls[0])
    with pytest.raises(ValueError, match=r"entry 0: no task of tau2: .*reward_basis names \['VIBES'\]"):
        _mock(tmp_path, ["VIBES"])


def test_a_judge_of_a_plan_grades_what_tau2_leaves_to_one(tmp_path) -> None:
    def judge(task: Task, *, seed: int) -> ScriptedAgent:
        polite = "please" in task.prompt.lower()
        return ScriptedAgent(["1: yes\n2: yes" if polite else "1: yes\n2: no"])

    register("agents", "polite-judge", judge)
    plan = {
        "judged": "all",
        "rule": "product",
        "channels": {
            "done": {"kind": "world", "needed": True},
            "judged": {"kind": "rubric", "judge": "j", "criteria_from": "judged", "times": 1, "gate": 1.0},
        },
        "judges": {"j": {"agent": "polite-judge"}},
    }
    asserted = ["The agent is an agent.", "The agent is polite."]
    task = _mock(tmp_path, ["DB", "NL_ASSERTION"], nl_assertions=asserted)
    change, end = Action.call("update_task_status", **_UPDATE), "It is done. Is there anything else?"
    try:
        for words, score, reward in (("Please wait.", 1.0, 1.0), ("Wait.", 0.5, 0.0)):
            last = asyncio.run(_played([words, change, end], task, rewards=plan))
            assert (last.channels["judged"], last.reward) == (score, reward)
            assert "silent" not in last.info
        plain = _mock(tmp_path, ["DB"], nl_assertions=asserted)
        last = asyncio.run(_played(["Wait.", change, end], plain, rewards=plan))
        assert (last.channels["judged"], last.reward) == (1.0, 1.0), "nothing of it is in the basis"
        only = plan | {"channels": {"judged": plan["channels"]["judged"]}}
        task = _mock(tmp_path, ["NL_ASSERTION"], nl_assertions=asserted)
        assert asyncio.run(_played(["Please.", end], task, rewards=only)).reward == 1.0
    finally:
        unregister("agents", "polite-judge")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("long", ["a" * 200_000, "/." * 100_000, "a" * 100_000 + "@" + "a" * 100_000])
def test_a_user_reads_a_long_proposal_in_linear_time(long: str) -> None:
    case = Case("I would like to cancel order w123.", "me", gold=[ToolCall(name="cancel_order", arguments={})])
    assert not answer_of(case, 1, f"Shall I cancel something, please confirm? {long}")[2]


def test_a_user_knows_the_paths_and_addresses_that_they_named_themselves() -> None:
    case = Case("Forward /docs/a.txt to ann@site.org.", "me", gold=[ToolCall(name="forward_mail", arguments={})])
    assert answer_of(case, 1, "Shall I forward /docs/a.txt to ann@site.org, please confirm?")[2]
    foreign = answer_of(case, 1, "Shall I forward ./docs/b.txt to bob@site.org, please confirm?")[0]
    assert foreign == "No. I did not ask for anything with /docs/b.txt."
