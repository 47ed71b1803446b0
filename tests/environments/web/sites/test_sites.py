"""The applications themselves, over HTTP: looking, changing, mistakes; their databases, tasks and grades."""

import io
import re
from itertools import islice

import pytest
from envgym_environments.web.database import Database, same_answer
from envgym_environments.web.sites.all_sites import SITES
from envgym_environments.web.sites.goals import Goal, Key, build, drawn, grade, listed
from envgym_environments.web.sites.tasks import web_sites_tasks
from werkzeug.test import Client

KINDS = [(site, kind) for site in SITES for kind in SITES[site].kinds]


class Visitor:
    """A person without a browser: gets and posts."""

    def __init__(self, name, content=0):
        self.site = SITES[name]
        self.database = Database(build(Key(self.site, content)))
        self.client = Client(
            lambda environ, start: self.site.respond(self.database.connection, environ)(environ, start)
        )

    def get(self, path):
        return self.client.get(path, base_url=self.site.origin)

    def post(self, path, **form):
        return self.client.post(
            path, data=form, base_url=self.site.origin, headers={"Referer": f"{self.site.origin}/"}
        )


@pytest.fixture
def visitor():
    made = []

    def make(name, content=0):
        made.append(Visitor(name, content))
        return made[-1]

    yield make
    for one in made:
        one.database.close()


@pytest.mark.parametrize("name", SITES)
def test_every_page_that_is_linked_is_there_and_looking_changes_nothing(name, visitor):
    who = visitor(name)
    seen, waiting = set(), ["/"]
    while waiting and len(seen) < 40:
        path = waiting.pop(0)
        shape = re.sub(r"\d+|q=[^&]*", "0", path)
        if path in seen or sum(re.sub(r"\d+|q=[^&]*", "0", one) == shape for one in seen) >= 3:
            continue
        seen.add(path)
        answer = who.get(path)
        assert answer.status_code == 200, path
        waiting += [
            link.replace("&amp;", "&") for link in re.findall(r'href="([/?][^"]*)"', answer.text) if link[0] == "/"
        ]
    assert len(seen) > 8
    assert who.database.content() == who.database.pristine


@pytest.mark.parametrize("name", SITES)
def test_what_a_visitor_does_wrong_is_a_page_and_changes_nothing(name, visitor):
    who = visitor(name)
    for rule in who.site._map.iter_rules():
        for value in ("3", "99999999", "Nowhere"):
            path = re.sub(r"<(int:)?\w+>", value, rule.rule)
            if "POST" in rule.methods:
                for form in (
                    {},
                    {"product": "x", "Quantity": "-4"},
                    {"Quantity": "9" * 40, "Title": "\0", "issue": "x"},
                ):
                    before = who.database.digest()
                    answer = who.post(path, **form)
                    assert answer.status_code in (303, 400, 404), (path, form)
                    if not path.endswith(_BARE):
                        assert who.database.digest() == before, (path, form)
            else:
                assert who.get(path).status_code in (200, 400, 404), path
    for path in (
        "/nowhere",
        "/?page=0",
        "/?page=-1",
        "/?page=99999999999999999999",
        "/%00",
        "/?q=%27%22%3Cb%3E%25",
    ):
        assert who.get(path).status_code in (200, 400, 404)
    assert who.client.open("/", method="DELETE", base_url=who.site.origin).status_code == 405


# forms of a button alone: there is nothing in them to be wrong
_BARE = ("/follow", "/unfollow", "/vote", "/unvote", "/delete", "/watch", "/unwatch", "/restore", "/save",
         "/unsave", "/cancel", "/star")  # fmt: skip


@pytest.mark.parametrize("name", SITES)
def test_a_reset_and_a_snapshot_give_the_very_bytes_back(name, visitor):
    who = visitor(name)
    pristine = who.database.content()
    who.database.connection.execute(_HARM[name])
    who.database.connection.execute("CREATE TABLE _scratch AS SELECT randomblob(50000) AS much")
    changed, kept = who.database.content(), who.database.snapshot()
    assert changed != pristine
    who.database.reset()
    assert who.database.content() == pristine
    who.database.restore(kept)
    assert who.database.content() == changed
    who.database.reset()
    assert who.database.snapshot().keys() == {"size"}, "of a pristine database there is nothing to keep"


def test_content_is_drawn_from_its_seed_alone():
    for site in SITES.values():
        first, again, other = (build.__wrapped__(Key(site, content)) for content in (5, 5, 6))
        assert first == again
        assert first != other


def test_what_is_written_is_shown_as_text():
    who = Visitor("forum")
    text = "<script>alert('x')</script> & \"quotes\""
    who.post("/threads/1/reply", **{"Your reply": text})
    number = who.database.connection.execute("SELECT id FROM thread WHERE NOT locked LIMIT 1").fetchone()[0]
    who.post(f"/threads/{number}/reply", **{"Your reply": text})
    shown = who.get(f"/threads/{number}").text
    assert "<script>alert" not in shown
    assert "&lt;script&gt;alert" in shown
    wiki = Visitor("wiki")
    wiki.post("/new", Title="A page", Text="[[<b>]] and <i>", Category="Towns")
    assert "<b>" not in wiki.get("/pages/A page").text.partition("<main>")[2]


def test_a_refusal_sends_back_to_where_one_came_from_and_nowhere_else(visitor):
    who = visitor("shop")
    answer = who.client.post(
        "/cart/add", data={}, base_url=who.site.origin, headers={"Referer": "http://shop.test//evil.example/"}
    )
    assert answer.headers["Location"] == "/"
    assert "Sorry: " in who.get("/").text
    assert "Sorry: " not in who.get("/").text, "it is said once"


def test_only_what_is_in_stock_can_be_bought(visitor):
    who = visitor("shop")
    row = who.database.connection.execute("SELECT * FROM product WHERE stock > 1 LIMIT 1").fetchone()
    who.post("/cart/add", product=row["id"], Quantity=row["stock"] + 1)
    assert not who.database.rows()["cart"]
    who.post("/cart/add", product=row["id"], Quantity=row["stock"])
    who.post("/checkout", **{"Deliver to": "Home", "Shipping": "Express"})
    assert (
        who.database.connection.execute("SELECT stock FROM product WHERE id = ?", (row["id"],)).fetchone()[0] == 0
    )
    assert not who.database.rows()["cart"]


def test_a_room_is_not_booked_twice(visitor):
    who = visitor("booking")
    days = {"Arrival": "2025-12-01", "Departure": "2025-12-04", "Meals": "none"}
    assert who.post("/rooms/1/book", **days).headers["Location"].startswith("/stays/")
    before = who.database.digest()
    who.post("/rooms/1/book", **days | {"Arrival": "2025-12-03", "Departure": "2025-12-09"})
    assert who.database.digest() == before
    assert (
        who.post("/rooms/1/book", **days | {"Arrival": "2025-12-04", "Departure": "2025-12-09"}).headers["Location"]
        != "/"
    )


def attached(who, table):
    return [tuple(row) for row in who.database.connection.execute(f"SELECT name, content FROM {table} ORDER BY id")]


def test_a_file_that_is_attached_is_shown_as_text_and_goes_along_with_what_is_forwarded(visitor):
    who = visitor("mail")
    letter = {"To": "a@b.example", "Subject": "Files", "Message": "See there."}
    sent = who.post("/write", **letter, Attachment=(io.BytesIO(b"<b>one</b>"), "folder/list.txt")).headers[
        "Location"
    ]
    assert "&lt;b&gt;one" in who.get("/attachments/1").text
    form = who.get(f"/write?forward={sent.rpartition('/')[2]}").text
    number = re.findall(r'name="forwards" value="(\d+)"', form)[0]
    more = (io.BytesIO(b"two"), "more.txt")
    again = who.post("/write", **letter, forwards=number, Attachment=more).headers["Location"]
    assert attached(who, "attachment") == [
        ("list.txt", b"<b>one</b>"),
        ("list.txt", b"<b>one</b>"),
        ("more.txt", b"two"),
    ]
    for _ in range(2):  # into the trash, and for good
        who.post(f"{again}/delete")
    assert attached(who, "attachment") == [("list.txt", b"<b>one</b>")]


def test_a_file_that_is_too_large_is_refused_and_so_is_none(visitor):
    who = visitor("tracker")

    def send(name, content):  # the client's own encoder leaves large files open
        head = f'--cut\r\nContent-Disposition: form-data; name="File"; filename="{name}"\r\n\r\n'
        body = b"%b%b\r\n--cut--\r\n" % (head.encode(), content)
        typed = "multipart/form-data; boundary=cut"
        return who.client.post("/issues/1/attach", data=body, content_type=typed, base_url=who.site.origin)

    assert who.post("/issues/1/attach").status_code == 303
    for name, size in (("", 0), ("large.bin", 200_001), ("larger.bin", 700_000)):
        assert send(name, bytes(size)).status_code == 303
        assert "Sorry: " in who.get("/").text
        assert not attached(who, "attachment")
    assert send("huge.bin", bytes(1_100_000)).status_code == 413
    assert send("C:\\\\docs/odd.bin", b"\xff").status_code == 303
    assert attached(who, "attachment") == [("odd.bin", b"\xff")]
    assert who.get("/files/1").status_code == 200


# tasks


def test_there_are_many_tasks_no_two_alike_and_held_out_ones_have_content_of_their_own():
    tasks = web_sites_tasks(300)
    asked = {(task.metadata["content"], task.metadata["site"], task.prompt) for task in tasks}
    assert len(asked) > 290
    assert {(task.metadata["site"], task.metadata["kind"]) for task in tasks} >= {*KINDS}
    splits = {split: {task.metadata["content"] for task in tasks.split(split)} for split in ("train", "heldout")}
    assert not splits["train"] & splits["heldout"]
    assert all(splits.values())
    assert [task.id for task in web_sites_tasks(3, seed=1)] != [task.id for task in web_sites_tasks(3)]
    assert len(list(islice(web_sites_tasks(None, site="wiki", kind="correct"), 5))) == 5


@pytest.mark.parametrize(
    ("options", "says"),
    [({"count": 0}, "at least 1"), ({"site": "bank"}, "site is 'bank'"), ({"kind": "buy"}, "give site= too"),
     ({"site": "wiki", "kind": "buy"}, "kind is 'buy'")],
)  # fmt: skip
def test_tasks_that_there_are_not_are_refused(options, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        web_sites_tasks(**options)


@pytest.mark.parametrize(("site", "kind"), KINDS)
def test_every_kind_is_graded_by_state_alone(site, kind):
    """Doing nothing gets nothing; the wanted rows do, and with one row more they do not."""
    key = Key(SITES[site], 2)
    goal = drawn(key, kind, 0)
    database = Database(build(key))
    answer = goal.answer
    url = goal.shows or f"{key.site.origin}/"
    assert grade(key.site, goal, database, url="http://x.test/", answer=None)["reward"] == 0.0
    for statement, values in goal.changes:
        database.connection.execute(statement, values)
    assert grade(key.site, goal, database, url=url, answer=answer)["reward"] == 1.0
    database.connection.execute(_HARM[site])
    verdict = grade(key.site, goal, database, url=url, answer=answer)
    assert (verdict["reward"], verdict["harm"]) == (0.0, 1.0)
    database.close()


_HARM = {
    "shop": "INSERT INTO address VALUES ('Boat', 'Quay 1', 'Riga')",
    "forum": "INSERT INTO thread VALUES (9999, 'Trains', 'More', 'me', '2025-01-01', 0)",
    "tracker": "INSERT INTO member VALUES ('Nobody')",
    "wiki": "INSERT INTO page VALUES ('Nowhere', 'Towns')",
    "mail": "INSERT INTO contact VALUES ('Nobody', 'no@body.example')",
    "booking": "INSERT INTO hotel VALUES (9999, 'Nowhere', 'Riga', 1, 0, 0)",
}


def test_half_of_what_was_asked_is_told_but_not_rewarded():
    key = Key(SITES["tracker"], 2)
    goal, database = drawn(key, "close-many", 1), Database(build(key))
    statement, values = goal.changes[0]
    database.connection.execute(statement, values)
    verdict = grade(key.site, goal, database, url="/", answer=None)
    assert 0.0 < verdict["done"] < 1.0
    assert verdict["reward"] == verdict["harm"] == 0.0
    database.close()


def test_answers_are_typed():
    assert same_answer("  Ada  lovelace.", "ada Lovelace")
    assert same_answer(12.5, 12.50)
    assert same_answer(3, 3.0)
    assert not same_answer("3", 3.0)
    assert not same_answer(3.0, "3")
    assert not same_answer(12.51, 12.5)


def test_what_is_shown_is_compared_by_what_it_lists_not_by_its_spelling(visitor):
    who = visitor("shop")
    assert listed(who.site, who.database, "/products?category=Home&sort=Name") == listed(
        who.site, who.database, "http://shop.test/products?sort=&category=Home&brand=&q="
    )
    assert listed(who.site, who.database, "/products?category=Home") != listed(who.site, who.database, "/products")
    assert listed(who.site, who.database, "http://evil.test/products") == ("elsewhere",)
    goal = Goal("", (), shows="/products?category=Home")
    verdict = grade(who.site, goal, who.database, url="http://shop.test/products?category=Home&page=1", answer=None)
    assert verdict["reward"] == 1.0


@pytest.mark.slow
@pytest.mark.turns(6)
@pytest.mark.parametrize(("site", "kind"), KINDS)
def test_every_kind_can_be_drawn_of_any_content_and_asks_for_something(site, kind):
    drew = 0
    for content in range(40):
        key = Key(SITES[site], content)
        try:
            goal = drawn(key, kind, content)
        except LookupError:
            continue
        drew += 1
        assert goal.changes or goal.shows or goal.answer is not None
        database = Database(build(key))
        assert grade(key.site, goal, database, url=f"{key.site.origin}/", answer=None)["reward"] == 0.0
        database.close()
    assert drew >= 36
