"""The prompts of `speculation.py`, by kind of text."""

import json

from edgechat.records import SamplingSettings

CODE = '''class Inventory:
    """Counts of the articles in a store."""

    def __init__(self, name, capacity=100):
        self.name = name
        self.capacity = capacity
        self.items = {}

    def add(self, article, count=1):
        """Put some of an article into the store."""
        if count <= 0:
            raise ValueError("count must be positive")
        if self.total() + count > self.capacity:
            raise OverflowError("the store is full")
        self.items[article] = self.items.get(article, 0) + count

    def remove(self, article, count=1):
        """Take some of an article out of the store."""
        if self.items.get(article, 0) < count:
            raise KeyError(f"not enough of {article}")
        self.items[article] -= count
        if self.items[article] == 0:
            del self.items[article]

    def total(self):
        """All articles together."""
        return sum(self.items.values())
'''
REPORT = (
    "The lighthouse at Grey Point was built in 1851 from granite that was brought across the bay in "
    "sailing barges. Its first lamp burned whale oil and could be seen for nine miles in clear weather. "
    "In 1889 the oil lamp was replaced by one that burned paraffin, and the tower was raised by twelve "
    "feet. The keepers lived in two cottages beside the tower with their families, a cow, and a garden "
    "behind a wall of stones. In the great storm of January 1903 the sea broke the wall and carried the "
    "garden away, but the lamp was never dark. The light was made electric in 1934, and the last keeper "
    "left the station in the autumn of 1987. Today the tower belongs to the town, and visitors may climb "
    "its 142 steps on Sundays from May to September."
)
RECORDS = """Anna Berg, 34, engineer, Oslo, anna.berg@example.org
Jonas Lind, 41, teacher, Malmo, jonas.lind@example.org
Maria Costa, 29, designer, Porto, maria.costa@example.org
Peter Novak, 52, plumber, Brno, peter.novak@example.org
Lucie Martin, 38, pilot, Lyon, lucie.martin@example.org"""
FIELDS = ("name", "age", "job", "city", "email")
DOCUMENT = json.dumps(
    [dict(zip(FIELDS, line.split(", "), strict=True)) for line in RECORDS.splitlines()], indent=2
)

GREEDY = SamplingSettings(temperature=0)
OPEN = SamplingSettings(temperature=0.8, seed=7)
KINDS: dict[str, tuple[str, SamplingSettings]] = {
    "edit": (f"Rename the method `total` to `count_all` everywhere. Give the whole code:\n\n{CODE}", GREEDY),
    "quote": (
        f"{REPORT}\n\nWhat does the text say about the lamps and the light? Quote each sentence that says "
        "something about them, word for word, with a dash before it.",
        GREEDY,
    ),
    "json": (
        "Add the key active with the value true to each object, and give the whole JSON:\n\n"
        f"```json\n{DOCUMENT}\n```",
        GREEDY,
    ),
    "form": (
        "Turn this into a JSON array of objects with the keys name, age, job, city and email:\n\n" + RECORDS,
        GREEDY,
    ),
    "prose": ("Write a story about two brothers who open a bakery in a small town.", OPEN),
    "poem": ("Write a long poem about the sea in winter.", OPEN),
    "echo": (f"Repeat the following text word for word, and nothing else:\n\n{REPORT}", GREEDY),
}
