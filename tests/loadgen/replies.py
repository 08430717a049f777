"""Replies that are sound, to be left alone, and replies that have collapsed, to be found."""

PROSE = (
    "The report covers three topics. First, it looks at how the town has grown since the railway came, and which "
    "quarters gained from it. Second, it asks who pays for the new bridge, because the old one was built by the "
    "county and the county no longer exists. Third, it compares two plans for the market square: one keeps the "
    "trees and loses the car park, the other does the reverse. The authors do not hide which one they prefer, but "
    "they give the figures that speak against it as well, and that is why the report is worth reading."
)

CODE = '''
```python
class Account:
    """Holds a balance in cents."""

    def __init__(self, owner: str, balance: int = 0) -> None:
        self.owner = owner
        self.balance = balance

    def deposit(self, cents: int) -> None:
        if cents <= 0:
            raise ValueError("cents must be positive")
        self.balance += cents

    def withdraw(self, cents: int) -> None:
        if cents <= 0:
            raise ValueError("cents must be positive")
        if cents > self.balance:
            raise ValueError("not enough money")
        self.balance -= cents


def test_deposit():
    account = Account("Ada")
    account.deposit(5)
    assert account.balance == 5
    account.deposit(7)
    assert account.balance == 12


def test_withdraw():
    account = Account("Ada", 20)
    account.withdraw(5)
    assert account.balance == 15
    account.withdraw(15)
    assert account.balance == 0
```
'''

CHECKS = "\n".join(f"    assert parse({text!r}) == {value}" for value, text in enumerate("abcdefghijklmnop"))

NUMBERED = "\n".join(
    f"{number}. {item}"
    for number, item in enumerate(
        [
            "Buy flour",
            "Buy sugar",
            "Buy butter",
            "Warm the oven",
            "Mix the flour",
            "Mix the sugar",
            "Fold the butter in",
        ]
        * 2,
        start=1,
    )
)

TICKED = "\n".join(
    f"- [x] {item}"
    for item in (
        "tests pass",
        "docs built",
        "tag set",
        "changelog written",
        "image pushed",
        "users told",
        "branch shut",
    )
)

TABLE = """
| Country | Capital | Coast | Landlocked | Member |
|---------|---------|-------|------------|--------|
""" + "\n".join(
    f"| {country} | {capital} | {coast} | {'no' if coast == 'yes' else 'yes'} | yes |"
    for country, capital, coast in (
        ("Norway", "Oslo", "yes"),
        ("Austria", "Vienna", "no"),
        ("Spain", "Madrid", "yes"),
        ("Hungary", "Budapest", "no"),
        ("Greece", "Athens", "yes"),
        ("Italy", "Rome", "yes"),
        ("Serbia", "Belgrade", "no"),
    )
)

BOXED = "\n".join(
    line
    for name, size in (("alpha", 12), ("beta", 7), ("gamma", 31), ("delta", 4), ("epsilon", 25))
    for line in ("+------------------------+-----------+", f"| {name:<22} | {size:>9} |")
)

JSON = (
    "["
    + ",\n ".join(
        f'{{"id": {number}, "name": "{name}", "active": true, "tags": [], "parent": null}}'
        for number, name in enumerate(["ash", "beech", "cedar", "elm", "fir", "hazel", "larch", "maple", "oak", "pine"])
    )
    + "]"
)

TIMES_TABLE = "\n".join(f"{a} x {b} = {a * b}" for a in (6, 7) for b in range(1, 11))

CSV = "\n".join(f"2031-04-{day:02d},ok,0,0,{20 + day % 5}" for day in range(1, 25))

REFRAIN = "\n".join(
    verse + "\nRow home, row home, the tide is low,\nrow home before the north winds blow.\n"
    for verse in (
        "My father mended nets by night,\nmy mother trimmed the lamp,",
        "The herring ran in silver shoals,\nthe quay was cold and damp,",
        "We sold the boat the year he died,\nwe kept the oars and rope,",
        "And now my daughter asks for sail\nand calls the old hull Hope,",
    )
)

CHINESE = (
    "港口在清晨很安静，渔船已经出海，只有几只海鸥停在石墙上。"
    "老人坐在门口修补渔网，偶尔抬头看看天色，想着今年的风比往年来得早。"
)

SHORT = "No, no, no, no, no!"

SOUND = {
    name.lower(): text
    for name, text in {**globals()}.items()
    if name.isupper() and isinstance(text, str) and name != "SOUND"
}

COLLAPSED = {
    "the case's own": "-".join(["data"] * 16),
    "one word": "the " * 100,
    "one mark": "!" * 256,
    "one letter": "a" * 400,
    "rules without end": "-" * 1000,
    "underscores without end": "_" * 1000,
    "a word without gaps": "datadata" * 60,
    "blank": " \n" * 80,
    "nothing": "",
    "one chinese character": "的" * 200,
    "a chinese phrase": "我不知道。" * 40,
    "a repeated line": "I am sorry, but I cannot help with that.\n" * 20,
    "a repeated long line": (
        "The committee, which met on the first Monday after the fair, could not agree on whether the bridge, the old "
        "ferry or the road through the marsh should be repaired before the winter storms came in from the west.\n"
    )
    * 6,
    "a phrase": "and then he said that " * 30,
    "a loop from the middle on": PROSE + " of the town" * 40,
    "a loop of lines from the middle on": CODE + "        self.balance = self.balance\n" * 40,
    "a loop that stumbles": "data data, data. Data data, data data. data, Data data data. " * 12,
    "a loop that gives way": "of the town " * 60 + PROSE,
}
