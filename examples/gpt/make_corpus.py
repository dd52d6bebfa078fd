"""Write the text that the example trains on: sentences about ropes and weather from a small grammar.

The text is generated, not collected, so it can be shipped and anyone can make the same bytes again:

    python examples/gpt/make_corpus.py > src/holdfast/workload/corpus.txt
"""

# ruff: noqa: SIM905 - lists of words read best as words

import random
import sys

PLACES = "harbour,quay,lighthouse,sail loft,chandlery,breakwater,slipway,mooring,fish market,boathouse".split(",")
PEOPLE = "pilot,rigger,harbour master,cooper,ferryman,lamplighter,net maker,mate,deckhand,chart maker".split(",")
THINGS = "rope,anchor,lantern,hawser,block,chart,cleat,compass,tiller,mainsail,buoy,bell".split(",")
MADE = "mended,coiled,counted,carried,oiled,hoisted,tested,marked,stowed,weighed".split(",")
WEATHER = "fog,rain,a north wind,low cloud,hard frost,slack water,a spring tide,thunder,a long swell".split(",")
KINDS = "old,heavy,tarred,new,frayed,borrowed,painted,broken,trusted,salted".split(",")
SAYINGS = (
    "What holds in calm is not yet proven.",
    "A knot is known by the load it let go.",
    "Count the boats before you count the fish.",
    "One anchor is a hope, two are a plan.",
    "Write it down while the ink is dry and the deck is not.",
)


def sentence(draw: random.Random) -> str:
    person, thing, kind = draw.choice(PEOPLE), draw.choice(THINGS), draw.choice(KINDS)
    made, place, weather = draw.choice(MADE), draw.choice(PLACES), draw.choice(WEATHER)
    forms = (
        f"The {person} {made} the {kind} {thing} at the {place}.",
        f"In {weather} the {person} left the {place} with {draw.randint(2, 19)} fathoms of {kind} {thing}.",
        f"After {weather} came {draw.choice(WEATHER)}, and the {thing} by the {place} held fast.",
        f'"Who {made} the {thing}?" asked the {person}; "the {draw.choice(PEOPLE)} did, before {weather}."',
        f"No {kind} {thing} was {made} that day, for {weather} lay over the {place}.",
        draw.choice(SAYINGS),
    )
    return draw.choice(forms)


def main() -> None:
    draw = random.Random(8470)
    lines = []
    while sum(map(len, lines)) < 40_000:
        lines.append(" ".join(sentence(draw) for _ in range(draw.randint(2, 5))))
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
