"""`miniwob-expert`: a scripted solver of many pages, which knows no more than what is observed.

Most pages are a form: it says what to click, choose or type, and then Submit. A plan is made of what is shown
first, and done step by step; where what is asked for only comes in sight on the way, the solver looks each time.
"""

import re
from collections.abc import Callable, Sequence

from envgym.env import Step
from envgym.messages import Action, text_of
from envgym.task import Task
from envgym_environments.experts import expert_of
from envgym_environments.web.miniwob.flights import flight
from envgym_environments.web.miniwob.reading import Element, Shown, read
from envgym_environments.web.miniwob.shapes import fits

__all__ = ["PLANS", "expert"]

Plan = Callable[[Shown], list[Action]]
Look = Callable[[Shown, int], Action]


def _click(element: Element) -> Action:
    return Action.call("click", ref=element.ref)


def _fill(element: Element, text: str) -> Action:
    return Action.call("fill", ref=element.ref, text=text)


def _quoted(shown: Shown) -> list[str]:
    return re.findall(r'"([^"]*)"', shown.asked)


def _submitted(shown: Shown, *before: Action) -> list[Action]:
    return [*before, _click(shown.submit())]


def _after(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise LookupError(f"{text!r} does not say {pattern!r}")
    return found.group(1).strip()


# what is clicked


def _button(shown: Shown) -> list[Action]:
    return [_click(shown.named(_quoted(shown)[0], "button"))]


def _only_button(shown: Shown) -> list[Action]:
    return [_click(shown.all("button")[0])]


def _one_two(shown: Shown) -> list[Action]:
    return [_click(shown.named("ONE", "button")), _click(shown.named("TWO", "button"))]


def _one_wait_two(shown: Shown) -> list[Action]:
    one, two = _one_two(shown)
    seconds = float(_after(r"wait (\d+) second", shown.asked))
    return [one, Action.call("wait", seconds=seconds + 0.3), two]


def _checkboxes(shown: Shown) -> list[Action]:
    names = _after(r"Select (.*) and click Submit", shown.asked).split(", ")
    wanted = [one for one in shown.all("label") if one.text in names]
    return _submitted(shown, *(_click(one.children[0]) for one in wanted))


def _dialog(shown: Shown) -> list[Action]:
    name = _quoted(shown)[-1]
    close = [one for one in shown.all("button") if one.attributes.get("title") == "Close"]
    return [_click(close[0] if name == "x" else shown.named(name, "button"))]


def _link(shown: Shown) -> list[Action]:
    return [_click(shown.named(_quoted(shown)[0], "span"))]


def _tab(shown: Shown) -> list[Action]:
    return [_click(shown.named(_after(r"(Tab #\d+)", shown.asked), "a"))]


def _list(shown: Shown) -> list[Action]:
    names = _after(r"Select (.*) from the", shown.asked).split(", ")
    return _submitted(shown, Action.call("select", ref=shown.all("select")[0].ref, options=list(names)))


def _widget(shown: Shown) -> list[Action]:
    name = _quoted(shown)[0]
    tags = {"button": "button", "textarea": "textarea"}
    if name in tags:
        return [_click(shown.all(tags[name])[0])]
    return [_click(next(one for one in shown.all("input") if one.kind == name))]


def _cheapest(shown: Shown) -> list[Action]:
    offers = [one for one in shown.all("button") if "$" in one.text or "Book" in one.text]
    if "cheapest" in shown.asked:
        return [_click(min(offers, key=lambda one: float(_after(r"\$(\d+)", one.text))))]
    cards = [one for one in shown.all("div") if len([b for b in one if b.tag == "button"]) == 1]
    told = [one for one in cards if re.search(r"\d+h \d+m", one.text)]
    longest = "longest" in shown.asked

    def minutes(one: Element) -> int:
        return int(_after(r"(\d+)h", one.text)) * 60 + int(_after(r"h (\d+)m", one.text))

    chosen = (max if longest else min)(told, key=minutes)
    return [_click(next(one for one in chosen if one.tag == "button"))]


def _centre(shown: Shown) -> list[Action]:
    return _submitted(shown, _click(shown.all("circle")[0]))


def _coordinate(shown: Shown) -> list[Action]:
    x, y = (int(part) for part in re.findall(r"-?\d+", shown.asked)[-2:])
    points = shown.all("circle")
    xs = sorted({float(one.attributes["cx"]) for one in points})
    ys = sorted({float(one.attributes["cy"]) for one in points}, reverse=True)
    for one in points:
        at = (xs.index(float(one.attributes["cx"])) - 2, ys.index(float(one.attributes["cy"])) - 2)
        if at == (x, y):
            return [_click(one)]
    raise LookupError(f"no point at {x},{y}")


def _shape_name(shown: Shown) -> list[Action]:
    svg = shown.all("svg")[0].children[0]
    if svg.tag == "text":
        name = "Number" if svg.text.isdigit() else "Letter"
    else:
        name = {"rect": "Rectangle", "circle": "Circle", "polygon": "Triangle"}[svg.tag]
    return [_click(shown.named(name, "button"))]


def _shape(shown: Shown) -> list[Action]:
    words = re.sub(r"[^a-z ]", "", shown.asked.lower()).split()
    named = [one for one in shown.all("svg")[0].children if fits(one, words)]
    return [_click(named[0])]


def _midpoint(shown: Shown) -> list[Action]:
    # the drawing begins 50 pixels from the top, where the question ends
    x, y = (sum(float(one.attributes[c]) for one in shown.all("circle")[:2]) / 2 for c in ("cx", "cy"))
    return _submitted(shown, Action.call("click_at", x=x, y=y + 50))


# what is typed


def _enter(shown: Shown) -> list[Action]:
    return _submitted(shown, *(_fill(one, _quoted(shown)[0]) for one in shown.fields()))


def _enter_cased(shown: Shown) -> list[Action]:
    word = _quoted(shown)[0]
    return _submitted(shown, _fill(shown.fields()[0], word.lower() if "lower" in shown.asked else word.upper()))


def _login(shown: Shown) -> list[Action]:
    return _submitted(shown, *(_fill(one, word) for one, word in zip(shown.fields(), _quoted(shown), strict=True)))


def _date(shown: Shown) -> list[Action]:
    month, day, year = _after(r"(\d+/\d+/\d+)", shown.asked).split("/")
    return _submitted(shown, _fill(shown.fields()[0], f"{year}-{month}-{day}"))


def _time(shown: Shown) -> list[Action]:
    hour, minute, half = re.findall(r"(\d+):(\d+) ([AP]M)", shown.asked)[0]
    hours = int(hour) % 12 + (12 if half == "PM" else 0)
    return _submitted(shown, _fill(shown.fields()[0], f"{hours:02d}:{minute}"))


def _focus(shown: Shown) -> list[Action]:
    place = re.search(r"(\d)(st|nd|rd|th)", shown.asked)
    return [_click(shown.fields()[int(place.group(1)) - 1 if place else 0])]


def _find_word(shown: Shown) -> list[Action]:
    words = re.findall(r"[^\s.,]+", shown.all("p")[0].text)
    return _submitted(shown, _fill(shown.fields()[-1], words[int(_after(r"(\d+)\w\w word", shown.asked)) - 1]))


def _last_word(shown: Shown) -> list[Action]:
    area = next(one for one in shown.elements if one.attributes.get("id") == "text-area")
    return _submitted(shown, _fill(shown.fields()[-1], area.text.split()[-1].strip(".,")))


def _copied(shown: Shown) -> list[Action]:
    areas = shown.all("textarea")
    place = re.search(r"(\d)(st|nd|rd|th)", shown.asked)
    area = areas[int(place.group(1)) - 1 if place else 0]
    target = next(one for one in shown.fields() if one.attributes.get("id") == "answer-input")
    keys = [Action.call("press", keys=key) for key in ("Control+a", "Control+c")]
    return _submitted(shown, _click(area), *keys, _click(target), Action.call("press", keys="Control+v"))


def _arithmetic(shown: Shown) -> list[Action]:
    left, sign, right = re.findall(r"(-?\d+)\s*([-+x*])\s*(-?\d+)", shown.by_id("math-problem").text)[0]
    return _submitted(shown, _fill(shown.fields()[0], str(_result(int(left), sign, int(right)))))


def _result(left: int, sign: str, right: int) -> int:
    return left + right if sign == "+" else left - right if sign == "-" else left * right


def _algebra(shown: Shown) -> list[Action]:
    problem = shown.by_id("math-problem").text
    left, sign, right, total = re.findall(r"(x|\d+)\s*([-+])\s*(x|\d+)\s*=\s*(-?\d+)", problem)[0]
    whole = int(total)
    if left == "x":
        answer = whole - int(right) if sign == "+" else whole + int(right)
    else:
        answer = whole - int(left) if sign == "+" else int(left) - whole
    return _submitted(shown, _fill(shown.fields()[0], str(answer)))


def _visual(shown: Shown) -> list[Action]:
    counted = [len(shown.by_id(f"visual-{side}").children) for side in (1, 2)]
    return _submitted(shown, _fill(shown.fields()[0], str(sum(counted))))


def _captcha(shown: Shown) -> list[Action]:
    return _submitted(shown, _fill(shown.fields()[0], shown.by_id("captcha").text.replace(" ", "")))


def _table(shown: Shown) -> list[Action]:
    label = _after(r"value of (.*) into the text", shown.asked)
    return _submitted(shown, _fill(shown.fields()[0], _row(shown, label)))


def _row(shown: Shown, label: str) -> str:
    for row in shown.all("tr"):
        if row.children and row.children[0].text.strip(": ") == label.strip(": "):
            return row.children[-1].text
    raise LookupError(f"no row {label!r}")


def _two_rows(shown: Shown) -> list[Action]:
    labels = [shown.by_id(name).text for name in ("ll1", "ll2")]
    return _submitted(
        shown, *(_fill(f, _row(shown, label)) for f, label in zip(shown.fields(), labels, strict=True))
    )


def _spinner(shown: Shown) -> list[Action]:
    return _submitted(shown, _fill(shown.fields()[0], _after(r"Select (-?\d+)", shown.asked)))


def _radios_and_text(shown: Shown) -> list[Action]:
    places = {"1st": 0, "2nd": 1, "3rd": 2}
    found = [places[one] for one in re.findall(r"1st|2nd|3rd", shown.asked)]
    number = re.findall(r"\"?(-?\d+)\"?(?!\w)", re.sub(r"1st|2nd|3rd", "", shown.asked))[-1]
    return _submitted(shown, _click(shown.all("input", "radio")[found[0]]), _fill(shown.fields()[found[1]], number))


def _odd_or_even(shown: Shown) -> list[Action]:
    rows = [one for one in shown.all("div") if sum(b.tag == "button" for b in one) == 2]
    acts = []
    for row in rows:
        number = int(re.findall(r"-?\d+", row.text)[0])
        name = "Even" if number % 2 == 0 else "Odd"
        acts.append(_click(next(b for b in row if b.tag == "button" and b.text == name)))
    return _submitted(shown, *acts)


def _movie(shown: Shown) -> list[Action]:
    genre, name, year = re.findall(r"Search for (.*) movies directed by (.*) from year (\d+)", shown.asked)[0]
    wanted = {"genre": genre, "director": name, "year": year}
    acts, label = [], ""
    for one in shown.elements:
        label = next((word for word in wanted if one.text.lower().strip(": ") == word), label)
        if one.tag == "input" and label:
            acts.append(_fill(one, wanted[label]))
    button = next(one for one in reversed(shown.elements) if one.text.lower() in ("submit", "search"))
    return [*acts, _click(button)]


def _agreement(shown: Shown) -> list[Action]:
    if "ancel" in shown.asked:
        return [_click(shown.named("Cancel", "button"))]
    fields = shown.all("input")
    area = shown.all("textarea")[0]
    acts = [_click(area), Action.call("press", keys="Control+End"), _fill(fields[-1], (_quoted(shown) or [""])[0])]
    return [*acts, _click(next(one for one in shown.all("button") if "gree" in one.text))]


def _dragged_item(shown: Shown) -> list[Action]:
    names = [one for one in shown.all("li")]
    name = _after(r"Drag (\S+) ", shown.asked)
    at = next(index for index, one in enumerate(names) if one.text == name)
    goal = at + (1 if "down" in shown.asked else -1)
    place = re.search(r"(\d)(st|nd|rd|th)", shown.asked)
    goal = int(place.group(1)) - 1 if place else goal
    return [Action.call("drag", start=names[at].ref, end=names[goal].ref)]


PLANS: dict[str, Plan] = {
    "button-delay": _one_wait_two, "buy-ticket": _cheapest, "choose-list": _list,
    "circle-center": _centre, "click-button": _button, "click-button-sequence": _one_two,
    "click-checkboxes": _checkboxes, "click-checkboxes-large": _checkboxes,
    "click-checkboxes-transfer": _checkboxes,
    "click-dialog": _dialog, "click-dialog-2": _dialog, "click-link": _link, "click-option": _checkboxes,
    "click-scroll-list": _list, "click-shape": _shape, "click-tab": _tab, "click-test": _only_button,
    "click-test-2": lambda shown: [_click(shown.named("ONE", "button"))],
    "click-test-transfer": _only_button, "click-widget": _widget, "copy-paste": _copied, "copy-paste-2": _copied,
    "enter-date": _date, "enter-password": _enter, "enter-text": _enter, "enter-text-2": _enter_cased,
    "enter-text-dynamic": _enter, "enter-time": _time, "find-midpoint": _midpoint, "find-word": _find_word,
    "focus-text": _focus, "focus-text-2": _focus, "form-sequence-2": _radios_and_text,
    "grid-coordinate": _coordinate,
    "identify-shape": _shape_name, "login-user": _login, "multi-layouts": _movie, "multi-orderings": _movie,
    "odd-or-even": _odd_or_even, "read-table": _table, "read-table-2": _two_rows, "scroll-text": _last_word,
    "sign-agreement": _agreement, "simple-algebra": _algebra, "simple-arithmetic": _arithmetic,
    "text-transform": _captcha, "unicode-test": _button, "use-spinner": _spinner, "visual-addition": _visual,
    "drag-items": _dragged_item,
}  # fmt: skip


def _decide(task: Task, seen: Sequence[Step]) -> Action:
    """The next action of a page's plan; where there is none, or it does not fit what is shown, the page is left."""
    page = str(task.metadata["page"])
    try:
        now = read(text_of(seen[-1].observation[-1]))
        if page in LOOKS:
            return LOOKS[page](now, len(seen) - 1)
        plan = PLANS[page](read(text_of(seen[0].observation[-1])))
        return plan[len(seen) - 1]
    except (LookupError, ValueError, StopIteration):
        return Action.call("wait", seconds=0.0)


def _fold(shown: Shown, turn: int) -> Action:
    """Open one section after the other until what is named is in sight."""
    name = _quoted(shown)[0]
    for one in shown.all("span"):
        if one.text.strip() == name and one.ref:
            return _click(one)
    heads = shown.all("h3") or [one for one in shown.all("a") if one.attributes.get("href", "").startswith("#tabs")]
    if not heads:
        raise LookupError("there is nothing to open")
    return _click(heads[turn % len(heads)])


def _unfold(shown: Shown, turn: int) -> Action:
    if turn == 0:
        return _click(shown.all("h3")[0])
    return _click(shown.submit())


def _tree(shown: Shown, turn: int) -> Action:
    name = _quoted(shown)[0]
    spans = [one for one in shown.all("span") if one.text]
    for one in spans:
        if one.text == name:
            return _click(one)
    folders = [one for one in spans if "folder" in one.attributes.get("class", "")]
    shut = [
        one.children[0]
        for one in shown.all("li")
        if "expandable" in one.attributes.get("class", "") and one.children
    ]
    return _click((shut or folders)[0])


def _generated(shown: Shown, turn: int) -> Action:
    number = re.findall(r"-?\d+", shown.by_id("display-number").text)
    if number:
        value = int(number[0])
        bound = re.findall(r"(less|greater) than (-?\d+)", shown.asked)
        even = ("even" in shown.asked and value % 2 == 0) or ("odd" in shown.asked and value % 2 == 1)
        below = bool(bound) and (value < int(bound[0][1]) if bound[0][0] == "less" else value > int(bound[0][1]))
        if even or below:
            return _click(shown.by_id("submit"))
    return _click(shown.by_id("generate"))


def _completed(shown: Shown, turn: int) -> Action:
    field = next(one for one in shown.all("input"))
    words = _quoted(shown)
    if turn == 0:
        return Action.call("click", ref=field.ref)
    if turn == 1:
        return Action.call("type_text", text=words[0])
    offered = [one for one in shown.all("li") + shown.all("div") if one.text.startswith(words[0]) and one.ref]
    fitting = [one for one in offered if len(words) < 2 or one.text.endswith(words[1])]
    if turn == 2 and fitting:
        return _click(fitting[-1])
    return _click(shown.submit())


def _mail(shown: Shown, turn: int) -> Action:
    name = _after(r"email by (\S+) and", shown.asked)
    row = next(one for one in shown.all("div", "email-thread") if name in one.text)
    icon = "trash" if "trash" in shown.asked else "star"
    return _click(next(one for one in row if icon in one.attributes.get("class", "")))


def _next_number(shown: Shown, turn: int) -> Action:
    return _click(sorted(shown.all("text"), key=lambda one: float(one.text))[0])


LOOKS: dict[str, Look] = {
    "ascending-numbers": _next_number,
    "click-collapsible": _unfold, "click-collapsible-nodelay": _unfold, "click-collapsible-2": _fold,
    "click-collapsible-2-nodelay": _fold, "click-tab-2": _fold, "click-tab-2-easy": _fold,
    "click-tab-2-medium": _fold, "click-tab-2-hard": _fold, "navigate-tree": _tree, "generate-number": _generated,
    "use-autocomplete": _completed, "use-autocomplete-nodelay": _completed, "email-inbox-delete": _mail,
    "email-inbox-important": _mail, "flight.Alaska": flight, "flight.Alaska-auto": flight,
}  # fmt: skip

expert = expert_of(_decide)
